//! Where a run stopped being made of numbers.

use addnorm_nn::{ForwardOptions, Inputs, Model, Observer, Tensor, Weight, Weights, statistics};
use addnorm_scheme::{Place, Sublayer};
use serde::{Deserialize, Serialize};

use crate::number::Number;

/// The first value that is not finite, in the order of computation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trouble {
    /// The block, from 1; none for the embedding, the head and the loss.
    pub block: Option<usize>,
    /// Its name: a site such as `blocks.3.attn.out`, a parameter such as `blocks.3.attn.wq`, or `loss`.
    pub site: String,
    /// Whether it is a gradient rather than a value.
    pub gradient: bool,
    /// Largest RMS of the residual stream before it, where that is known.
    pub largest_rms_before: Option<Number>,
}

struct Finder {
    /// `encoder.` or `decoder.` in a pair.
    prefix: &'static str,
    stream_names: Vec<String>,
    found: Option<Trouble>,
    largest: f64,
}

impl Finder {
    fn look(&mut self, place: Place, site: String, x: &Tensor<3>) {
        if self.found.is_none() && !statistics::is_finite(x) {
            let block = if let Place::Block(block) = place { Some(block) } else { None };
            self.found = Some(Trouble { block, site, gradient: false, largest_rms_before: Some(self.largest.into()) });
        }
    }
}

impl Observer for Finder {
    fn stack(&mut self, stack: usize) {
        self.prefix = ["encoder.", "decoder."][stack.min(1)];
    }

    fn stream(&mut self, place: Place, stream: usize, x: &mut Tensor<3>) {
        let site = format!("{}{}.{}", self.prefix, place.prefix(), self.stream_names[stream]);
        self.look(place, site, x);
        self.largest = self.largest.max(statistics::rms(x));
    }

    fn sublayer_output(&mut self, place: Place, sublayer: Sublayer, x: &mut Tensor<3>) {
        self.look(place, format!("{}{}.{}.out", self.prefix, place.prefix(), sublayer.name()), x);
    }
}

/// Repeats a forward pass and names the first value in it that is not finite; none if all are.
///
/// # Panics
/// If a token is not in the vocabulary.
pub fn find_first_non_finite(
    model: &Model,
    weights: &Weights,
    inputs: impl Into<Inputs>,
    options: ForwardOptions,
) -> Option<Trouble> {
    let mut finder = Finder { prefix: "", stream_names: model.plan().streams.clone(), found: None, largest: 0.0 };
    let logits = model.logits(weights, inputs, options, &mut finder);
    finder.look(Place::Head, "logits".to_string(), &logits);
    finder.found
}

/// The parameter whose gradient stopped being finite first. The backward pass goes from the head to the
/// embedding, so that is the last one in the model's order of blocks.
pub fn first_non_finite_gradient(model: &Model, gradients: &[Weight]) -> Option<Trouble> {
    let order = |block: Option<usize>, name: &str| match block {
        Some(block) => block,
        // The head comes after every block, the embedding before.
        None if name.starts_with("head") => usize::MAX,
        None => 0,
    };
    model
        .parameters()
        .iter()
        .zip(gradients)
        .filter(|(_, gradient)| !gradient.sum_of_squares().is_finite())
        .max_by_key(|(info, _)| order(info.block, &info.name))
        .map(|(info, _)| Trouble {
            block: info.block,
            site: info.name.clone(),
            gradient: true,
            largest_rms_before: None,
        })
}
