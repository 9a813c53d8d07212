//! The same function in another form: LayerNorm as RMSNorm of what has no mean (arXiv:2305.14858).
//!
//! If everything that is added to a stream has mean zero over the width, LayerNorm of the stream is RMSNorm of it,
//! and one entry of the stream can be left out. Both forms are exact; what changes are the weights.

use addnorm_scheme::prose::prose;
use addnorm_scheme::{NormKind, ParameterSize, Place, Plan, Scheme, Section, Step, Sublayer, entry_of};

use crate::layout::{AttentionAt, LinearAt, NormAt};
use crate::model::{Model, ModelError};
use crate::weights::Weights;

/// Why a model has no such form.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConvertError {
    /// The target cannot be made at these sizes.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The conversion would not be exact.
    #[error("{0}")]
    NotExact(String),
}

fn not_exact<T>(why: impl Into<String>) -> Result<T, ConvertError> {
    Err(ConvertError::NotExact(why.into()))
}

/// A matrix by rows in `f64`.
struct Table {
    values: Vec<f64>,
    columns: usize,
}

impl Table {
    fn rows(&self) -> impl Iterator<Item = &[f64]> {
        self.values.chunks_exact(self.columns)
    }

    /// Every row less its mean.
    fn centred(mut self) -> Self {
        for row in self.values.chunks_exact_mut(self.columns) {
            let mean = row.iter().sum::<f64>() / row.len() as f64;
            row.iter_mut().for_each(|value| *value -= mean);
        }
        self
    }

    /// Without the last column.
    fn narrowed(self) -> Self {
        let columns = self.columns - 1;
        let values = self.rows().flat_map(|row| row[..columns].to_vec()).collect();
        Table { values, columns }
    }

    /// Row `i` times `factors[i]`.
    fn scaled_rows(mut self, factors: &[f64]) -> Self {
        for (row, factor) in self.values.chunks_exact_mut(self.columns).zip(factors) {
            row.iter_mut().for_each(|value| *value *= factor);
        }
        self
    }

    fn transposed(&self) -> Self {
        let rows = self.values.len() / self.columns;
        let values = (0..self.columns).flat_map(|j| (0..rows).map(move |i| (i, j)));
        Table { values: values.map(|(i, j)| self.values[i * self.columns + j]).collect(), columns: rows }
    }

    /// What reads a zero-mean vector, reading all but its last entry: every row less the last.
    fn without_last_row(self) -> Self {
        let rows = self.values.len() / self.columns;
        let last = self.values[(rows - 1) * self.columns..].to_vec();
        let values = self.rows().take(rows - 1);
        let values = values.flat_map(|row| row.iter().zip(&last).map(|(value, last)| value - last).collect::<Vec<_>>());
        Table { values: values.collect(), columns: self.columns }
    }

    /// `vector * self`.
    fn product(&self, vector: &[f64]) -> Vec<f64> {
        let mut sums = vec![0.0; self.columns];
        for (row, factor) in self.rows().zip(vector) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += factor * value);
        }
        sums
    }
}

/// Whether every stream stays free of a mean when sublayers' outputs are, and every norm's result is read by a
/// sublayer or the output alone.
fn keeps_zero_mean(plan: &Plan) -> Result<(), String> {
    for section in plan.sections() {
        let place = section.place.prefix();
        let mut free = vec![false; section.slots];
        free[..section.inputs].fill(true);
        let mut normed = vec![false; section.slots];
        for step in &section.steps {
            match step {
                Step::Mix(mix) => {
                    let wide = mix.terms.iter().map(|term| &term.coefficient).chain([&mix.scale]).any(|coefficient| {
                        let mut wide = false;
                        coefficient.folded.names(&mut |name| {
                            let known = section.learnables.iter().find(|known| known.name == entry_of(name).0);
                            wide |= known.is_some_and(|known| known.size == ParameterSize::Width);
                        });
                        wide
                    });
                    if wide {
                        return Err(format!("{place} scales a stream by a vector, which gives it a mean"));
                    }
                    if mix.terms.iter().any(|term| normed[term.input]) {
                        return Err(format!("{place} adds the result of a norm, which has a mean"));
                    }
                    if mix.norm.is_some() {
                        normed[mix.output] = true;
                    } else {
                        free[mix.output] = mix.terms.iter().all(|term| free[term.input]);
                    }
                }
                Step::Apply { output, .. } => free[*output] = true,
                Step::Assign { input, output, .. } => {
                    (free[*output], normed[*output]) = (free[*input], normed[*input]);
                }
                Step::Gate { .. } | Step::Multiply { .. } => {
                    return Err(format!("{place} has a gate, which gives a stream a mean"));
                }
            }
        }
        let is_head = section.outputs.len() == 1 && section.place == Place::Head;
        if !is_head && section.outputs.iter().any(|&output| !free[output]) {
            return Err(format!("{place} hands a stream on that a norm has just given a mean"));
        }
        if is_head && !normed[section.outputs[0]] {
            return Err("the output reads a stream that no norm has read".to_string());
        }
    }
    Ok(())
}

/// The norm whose result a sublayer or the output reads, with the fixed factor on it.
fn norm_before(section: &Section, slot: usize) -> Result<(&str, f64), ConvertError> {
    let place = section.place.prefix();
    let found = section.steps.iter().find_map(|step| match step {
        Step::Mix(mix) if mix.output == section.origin(slot) => Some((mix.norm.as_deref()?, mix.scale.fixed())),
        _ => None,
    });
    match found {
        Some((name, Some(scale))) => Ok((name, scale)),
        Some((name, None)) => not_exact(format!("{place}.{name} has a factor that changes as training goes")),
        None => not_exact(format!("something in {place} reads a stream that no norm has read")),
    }
}

struct Converter<'a> {
    source: &'a Model,
    weights: &'a Weights,
    target: Model,
    /// Whether gains go into the matrices and streams lose an entry.
    narrow: bool,
    values: Vec<Option<Vec<f64>>>,
}

impl Converter<'_> {
    fn vector(&self, index: usize) -> Vec<f64> {
        self.weights.0[index].to_values()
    }

    fn table(&self, index: usize) -> Table {
        let columns = self.source.parameters()[index].shape[1];
        Table { values: self.vector(index), columns }
    }

    fn set(&mut self, index: usize, values: Vec<f64>) {
        self.values[index] = Some(values);
    }

    /// A map that reads a norm of a stream.
    fn reader(&mut self, from: LinearAt, to: LinearAt, (norm, scale): (NormAt, f64)) {
        let weight = self.table(from.weight);
        let mut bias = from.bias.map_or_else(|| vec![0.0; weight.columns], |bias| self.vector(bias));
        if let Some(norm_bias) = norm.bias {
            let added = weight.product(&self.vector(norm_bias));
            bias.iter_mut().zip(added).for_each(|(bias, added)| *bias += scale * added);
        }
        let weight = match norm.gain.filter(|_| self.narrow) {
            Some(gain) => weight.scaled_rows(&self.vector(gain)).without_last_row(),
            None if self.narrow => weight.without_last_row(),
            None => weight,
        };
        self.set(to.weight, weight.values);
        if let Some(to) = to.bias {
            self.set(to, bias);
        }
    }

    /// A map whose result is added to a stream.
    fn writer(&mut self, from: LinearAt, to: LinearAt) {
        let weight = self.table(from.weight).centred();
        let columns = weight.columns;
        let bias = from.bias.map_or_else(|| vec![0.0; columns], |bias| self.vector(bias));
        let bias = Table { values: bias, columns }.centred();
        let (weight, bias) = if self.narrow { (weight.narrowed(), bias.narrowed()) } else { (weight, bias) };
        self.set(to.weight, weight.values);
        if let Some(to) = to.bias {
            self.set(to, bias.values);
        }
    }

    /// A table of which rows enter a stream. One that is the output matrix too stays as it is: it is centred where
    /// it enters.
    fn entering(&mut self, from: usize, to: usize, also_output: bool) {
        let table = self.table(from);
        let table = match (self.narrow, also_output) {
            (true, _) => table.centred().narrowed(),
            (false, true) => table,
            (false, false) => table.centred(),
        };
        self.set(to, table.values);
    }

    fn attention(&mut self, from: &AttentionAt, to: &AttentionAt, norm: (NormAt, f64)) {
        self.reader(from.query, to.query, norm);
        self.reader(from.key, to.key, norm);
        self.reader(from.value, to.value, norm);
        if let (Some(from), Some(to)) = (from.head_scale, to.head_scale) {
            self.set(to, self.vector(from));
        }
        self.writer(from.output, to.output);
    }

    fn run(mut self) -> Result<(Model, Weights), ConvertError> {
        let target = self.target.clone();
        let (from, to) = (&self.source.layout.towers[0], &target.layout.towers[0]);
        let tied = self.source.config.tied;
        let plan = self.source.plan().clone();
        if let (Some(from), Some(to)) = (from.entrance.table, to.entrance.table) {
            self.entering(from, to, tied);
        }
        for (from, to) in [
            (from.entrance.positions, to.entrance.positions),
            (from.entrance.token_types, to.entrance.token_types),
            (from.entrance.class_token, to.entrance.class_token),
        ] {
            if let (Some(from), Some(to)) = (from, to) {
                self.entering(from, to, false);
            }
        }
        if let (Some(from), Some(to)) = (from.entrance.patches, to.entrance.patches) {
            self.writer(from, to);
        }
        for section in plan.sections() {
            let (from, to) = (from.section(section.place), to.section(section.place));
            for (name, norm) in &from.norms {
                if let (Some(gain), Some(into)) = (norm.gain, to.norms[name].gain) {
                    self.set(into, self.vector(gain));
                }
            }
            for (name, &index) in &from.learnables {
                self.set(to.learnables[name], self.vector(index));
            }
            for step in &section.steps {
                let Step::Apply { sublayer, input, .. } = step else { continue };
                let (norm, scale) = norm_before(section, *input)?;
                let norm = (from.norms[norm], scale);
                match sublayer {
                    Sublayer::FeedForward => {
                        if let (Some(from), Some(to)) = (&from.feed_forward, &to.feed_forward) {
                            self.reader(from.input, to.input, norm);
                            if let (Some(from), Some(to)) = (from.gate, to.gate) {
                                self.reader(from, to, norm);
                            }
                            self.writer(from.output, to.output);
                        }
                    }
                    _ => {
                        if let (Some(from), Some(to)) = (&from.attention, &to.attention) {
                            self.attention(from, to, norm);
                        }
                    }
                }
            }
        }
        // The output matrix reads the last norm; its rows are answers.
        let (last, scale) = norm_before(&plan.head, plan.head.outputs[0])?;
        let last = from.head.norms[last];
        let (from, to) = (&self.source.layout.exit, &target.layout.exit);
        let turned = self.table(from.matrix).transposed();
        let mut bias = from.bias.map_or_else(|| vec![0.0; turned.columns], |bias| self.vector(bias));
        if let Some(norm_bias) = last.bias {
            let added = turned.product(&self.vector(norm_bias));
            bias.iter_mut().zip(added).for_each(|(bias, added)| *bias += scale * added);
        }
        if self.narrow {
            let turned = match last.gain {
                Some(gain) => turned.scaled_rows(&self.vector(gain)),
                None => turned,
            };
            self.set(to.matrix, turned.without_last_row().transposed().values);
        } else if !tied {
            self.set(to.matrix, turned.transposed().values);
        }
        if let Some(to) = to.bias {
            self.set(to, bias);
        }
        let made = target.parameters().iter().zip(&self.values).map(|(info, values)| match values {
            Some(values) => Ok(self.weights.0[0].beside(values.clone(), &info.shape)),
            None => not_exact(format!("nothing in the model becomes '{}'", info.name)),
        });
        let weights = Weights(made.collect::<Result<_, _>>()?);
        Ok((target, weights))
    }
}

impl Model {
    /// The same function in the form of another scheme: one with the same equations whose norms are RMSNorm over
    /// streams that are kept free of a mean, or over streams that lack an entry. Biases of norms go into the maps
    /// that read them, and with a narrower stream gains do too.
    ///
    /// # Errors
    /// If the conversion would not be exact, with the reason.
    pub fn convert(&self, weights: &Weights, target: &Scheme) -> Result<(Model, Weights), ConvertError> {
        if self.plans.len() > 1 {
            return not_exact("a pair is not converted: its decoder reads the encoder's last norm, which is no stream");
        }
        if !self.norm.centres() {
            return not_exact(format!("the model's norms are {}, which take no mean off", self.norm.name()));
        }
        let plan = self.plan();
        let options = plan.options;
        let inner =
            options.attention.inner_norm || options.attention.projection_norms.is_some() || options.ffn_inner_norm;
        let config = &self.config;
        if inner || config.embedding_norm || config.output_transform || config.width_of_embedding() != config.width {
            return not_exact(
                "norms that read no stream would change with the others, and they have means of their own",
            );
        }
        keeps_zero_mean(plan).map_err(ConvertError::NotExact)?;
        let mut to = config.clone();
        let has_norm_bias = self.norm.has_bias();
        to.bias |= has_norm_bias;
        to.qkv_bias = to.qkv_bias.map(|bias| bias | has_norm_bias);
        to.logit_bias |= has_norm_bias;
        let narrow = target.norm == Some(NormKind::Crmsnorm);
        to.tied &= !narrow;
        let made = Model::new(target, &to)?;
        if prose(made.plan()) != prose(plan) {
            return not_exact(format!("the equations of '{}' are not those of '{}'", target.name, plan.scheme));
        }
        let centred = made.layout.towers[0].blocks.iter().all(|block| {
            let attention = block.attention.as_ref().is_none_or(|at| at.output.centred);
            attention && block.feed_forward.as_ref().is_none_or(|at| at.output.centred)
        });
        let entrance = &made.layout.towers[0].entrance;
        let enters_centred = entrance.table.is_none() || entrance.centred_table;
        let free = centred && enters_centred && entrance.centred_positions;
        if !(narrow || (free && made.norm == NormKind::Rmsnorm)) {
            return not_exact(format!("'{}' keeps no stream free of a mean", target.name));
        }
        let values = vec![None; made.parameters().len()];
        Converter { source: self, weights, target: made, narrow, values }.run()
    }
}
