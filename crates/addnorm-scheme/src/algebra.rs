//! The one way in which a scheme is used.

use crate::plan::{Mix, Place, Plan, Section, Step};
use crate::scheme::Sublayer;

/// A meaning for schemes. An implementation says what a sum with a norm is, and what a sublayer is, for
/// values of its own: tensors, prices, pieces of text, nodes of a diagram. [`interpret`] does the rest.
pub trait Algebra {
    /// What stands for one residual stream, or any value between.
    type Value: Clone;
    /// What can go wrong.
    type Error;

    /// `scale * norm(Σ coefficient * input)`. `inputs` are in the order of `mix.terms`.
    ///
    /// # Errors
    /// As the implementation says.
    fn mix(&mut self, place: Place, mix: &Mix, inputs: &[Self::Value]) -> Result<Self::Value, Self::Error>;

    /// The attention or the feed-forward network of a block.
    ///
    /// # Errors
    /// As the implementation says.
    fn apply(&mut self, place: Place, sublayer: Sublayer, input: Self::Value) -> Result<Self::Value, Self::Error>;

    /// `sigmoid(W input + b)`, with the matrix and bias of that name.
    ///
    /// # Errors
    /// As the implementation says.
    fn gate(&mut self, place: Place, name: &str, input: Self::Value) -> Result<Self::Value, Self::Error>;

    /// A gate times a value, entry by entry.
    ///
    /// # Errors
    /// As the implementation says.
    fn multiply(&mut self, place: Place, gate: Self::Value, value: Self::Value) -> Result<Self::Value, Self::Error>;

    /// An equation is complete: `name = value`. What is returned is what later equations see.
    ///
    /// # Errors
    /// As the implementation says.
    fn assign(
        &mut self,
        place: Place,
        name: &str,
        is_stream: bool,
        value: Self::Value,
    ) -> Result<Self::Value, Self::Error> {
        let _ = (place, name, is_stream);
        Ok(value)
    }

    /// A section begins, with the streams as they are, and after them the entries of the histories.
    ///
    /// # Errors
    /// As the implementation says.
    fn enter(&mut self, section: &Section, streams: &mut [Self::Value]) -> Result<(), Self::Error> {
        let _ = (section, streams);
        Ok(())
    }

    /// A section ends, with its results: every stream and every entry of the histories, or for the head what the
    /// output matrix reads.
    ///
    /// # Errors
    /// As the implementation says.
    fn leave(&mut self, section: &Section, results: &mut [Self::Value]) -> Result<(), Self::Error> {
        let _ = (section, results);
        Ok(())
    }
}

/// Walks the whole plan: `embedding` goes into every stream, and what comes back is what the head reads.
///
/// # Errors
/// The first error of the algebra.
pub fn interpret<A: Algebra>(plan: &Plan, algebra: &mut A, embedding: A::Value) -> Result<A::Value, A::Error> {
    let mut streams = vec![embedding; plan.streams.len()];
    for section in plan.sections() {
        streams = interpret_section(section, algebra, streams)?;
    }
    // The head has one result.
    Ok(streams.swap_remove(0))
}

/// Walks one section.
///
/// # Errors
/// The first error of the algebra.
pub fn interpret_section<A: Algebra>(
    section: &Section,
    algebra: &mut A,
    mut streams: Vec<A::Value>,
) -> Result<Vec<A::Value>, A::Error> {
    algebra.enter(section, &mut streams)?;
    let mut values: Vec<Option<A::Value>> = streams.into_iter().map(Some).collect();
    values.resize(section.slots, None);
    for (step, dead) in section.steps.iter().zip(&section.dead_after) {
        // The planner gives every slot a value before it is read, and frees it only after its last use.
        let read = |slot: usize| values[slot].clone().expect("the planner orders steps by their inputs");
        let (output, value) = match step {
            Step::Mix(mix) => {
                let inputs: Vec<A::Value> = mix.terms.iter().map(|term| read(term.input)).collect();
                (mix.output, algebra.mix(section.place, mix, &inputs)?)
            }
            Step::Apply { sublayer, input, output } => {
                (*output, algebra.apply(section.place, *sublayer, read(*input))?)
            }
            Step::Gate { name, input, output, .. } => (*output, algebra.gate(section.place, name, read(*input))?),
            Step::Multiply { gate, input, output } => {
                (*output, algebra.multiply(section.place, read(*gate), read(*input))?)
            }
            Step::Assign { name, is_stream, input, output, .. } => {
                (*output, algebra.assign(section.place, name, *is_stream, read(*input))?)
            }
        };
        values[output] = Some(value);
        for &slot in dead {
            values[slot] = None;
        }
    }
    let mut results: Vec<A::Value> = section
        .outputs
        .iter()
        .map(|&slot| values[slot].clone().expect("the planner names results that were computed"))
        .collect();
    algebra.leave(section, &mut results)?;
    Ok(results)
}
