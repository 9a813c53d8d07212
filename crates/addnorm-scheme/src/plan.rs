//! A scheme at a depth: every block as a list of steps, constants as numbers, every value with a name.
//!
//! The plan is what an [`Algebra`](crate::Algebra) walks. Adds, scales and the norm that meet are one
//! step ([`Mix`]), whatever scheme they come from: a pattern is recognised by its shape alone.

use std::collections::BTreeMap;

use crate::init::{InitTable, MatrixKind};
use crate::planner::{Planner, prune};
use crate::scalar::Scalar;
use crate::scheme::*;

/// Deepest stack that is planned.
pub const MAX_BLOCKS: usize = 100_000;

/// Where a stack stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stack {
    /// A decoder by itself.
    Decoder,
    /// An encoder by itself.
    Encoder,
    /// The encoder of a pair.
    PairEncoder {
        /// Blocks of the pair's decoder.
        decoder_blocks: usize,
    },
    /// The decoder of a pair.
    PairDecoder {
        /// Blocks of the pair's encoder.
        encoder_blocks: usize,
    },
}

impl Stack {
    /// The sublayers of one of its blocks, in order.
    pub fn sublayers(self) -> &'static [Sublayer] {
        match self {
            Stack::PairDecoder { .. } => &Sublayer::ALL,
            _ => &Sublayer::ORDER,
        }
    }

    /// The side that it stands on, and whether it is one of a pair.
    pub(crate) fn side(self) -> (StackSide, bool) {
        match self {
            Stack::Encoder => (StackSide::Encoder, false),
            Stack::Decoder => (StackSide::Decoder, false),
            Stack::PairEncoder { .. } => (StackSide::Encoder, true),
            Stack::PairDecoder { .. } => (StackSide::Decoder, true),
        }
    }

    /// The word for it, and the whole phrase.
    pub(crate) fn words(self) -> (&'static str, &'static str) {
        match self {
            Stack::Encoder => ("encoder", "an encoder by itself"),
            Stack::Decoder => ("decoder", "a decoder by itself"),
            _ => ("pair", "an encoder-decoder pair"),
        }
    }
}

/// What the constants of a scheme may depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dimensions {
    /// Blocks of this stack (`L`).
    pub blocks: usize,
    /// Width of the residual stream (`d`).
    pub width: usize,
    /// Attention heads (`h`).
    pub heads: usize,
    /// Which stack.
    pub stack: Stack,
}

/// A scheme that cannot be built at these dimensions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{scheme}: {message}")]
pub struct PlanError {
    /// The scheme's name.
    pub scheme: String,
    /// What is wrong.
    pub message: String,
}

/// A weight in a sum: as written, and with everything known filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Coefficient {
    /// As the scheme writes it.
    pub symbol: Scalar,
    /// With constants as numbers; what is left are learnables and the training step.
    pub folded: Scalar,
}

impl Coefficient {
    /// The factor one.
    pub fn one() -> Self {
        Coefficient { symbol: Scalar::one(), folded: Scalar::one() }
    }

    /// Its number, unless it has learnables or changes with the training step.
    pub fn fixed(&self) -> Option<f64> {
        self.folded.number()
    }

    /// Its expression at a training step; what is left then are learnables.
    pub fn at_step(&self, step: f64) -> Scalar {
        match self.folded {
            Scalar::Number(_) => self.folded.clone(),
            _ => self.folded.fold(&BTreeMap::from([("t".to_string(), Scalar::Number(step))])),
        }
    }
}

/// The number of a value inside one section.
pub type Slot = usize;

/// One weighted input of a [`Mix`].
#[derive(Debug, Clone, PartialEq)]
pub struct MixTerm {
    /// Its weight.
    pub coefficient: Coefficient,
    /// What is weighted.
    pub input: Slot,
    /// Whether no gradient flows back into it.
    pub stopped: bool,
    /// The sublayer whose output this is (directly, or through a norm of it alone).
    pub contribution_of: Option<Sublayer>,
}

/// `scale * norm(Σ coefficient * input)`; without a norm only the sum.
#[derive(Debug, Clone, PartialEq)]
pub struct Mix {
    /// The summands, at least one.
    pub terms: Vec<MixTerm>,
    /// The norm over the sum, by its name in the section.
    pub norm: Option<String>,
    /// What the result is multiplied by.
    pub scale: Coefficient,
    /// Where the result goes.
    pub output: Slot,
}

/// One step of a section.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// `sigmoid(W input + b)`.
    Gate {
        /// Its name in the section, under which its matrix and its bias stand.
        name: String,
        /// What it reads.
        input: Slot,
        /// Where the entries of the bias start.
        bias: Coefficient,
        /// Where the gate goes.
        output: Slot,
    },
    /// A gate times a value, entry by entry.
    Multiply {
        /// The gate.
        gate: Slot,
        /// The value.
        input: Slot,
        /// Where the product goes.
        output: Slot,
    },
    /// Adds, scales, and a norm.
    Mix(Mix),
    /// A sublayer.
    Apply {
        /// Which.
        sublayer: Sublayer,
        /// What it reads.
        input: Slot,
        /// Where its output goes.
        output: Slot,
    },
    /// An equation of the scheme is complete.
    Assign {
        /// The name on its left.
        name: String,
        /// Whether that is a stream rather than a local name.
        is_stream: bool,
        /// The value.
        input: Slot,
        /// The value under its name, which later steps read.
        output: Slot,
        /// The line of the scheme's text, from 1.
        line: usize,
    },
}

impl Step {
    /// Calls `visit` with every slot it reads.
    pub fn reads(&self, visit: &mut dyn FnMut(Slot)) {
        match self {
            Step::Mix(mix) => mix.terms.iter().for_each(|term| visit(term.input)),
            Step::Multiply { gate, input, .. } => {
                visit(*gate);
                visit(*input);
            }
            Step::Apply { input, .. } | Step::Assign { input, .. } | Step::Gate { input, .. } => visit(*input),
        }
    }

    /// Where its result goes.
    pub fn output(&self) -> Slot {
        match self {
            Step::Mix(mix) => mix.output,
            Step::Apply { output, .. }
            | Step::Assign { output, .. }
            | Step::Gate { output, .. }
            | Step::Multiply { output, .. } => *output,
        }
    }
}

/// How many numbers a learnable of one section has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterSize {
    /// One.
    Scalar,
    /// One for each dimension of the stream.
    Width,
    /// This many, one for each entry of a history; equations speak of entry `k` of `w` as `w[k]`.
    Entries(usize),
}

impl ParameterSize {
    /// The number of numbers where streams are this wide.
    pub fn elements(self, width: usize) -> usize {
        match self {
            ParameterSize::Scalar => 1,
            ParameterSize::Width => width,
            ParameterSize::Entries(entries) => entries,
        }
    }
}

/// A learnable of one section.
#[derive(Debug, Clone, PartialEq)]
pub struct LearnedParameter {
    /// Its name in the section, such as `lambda` or `attn.lambda`.
    pub name: String,
    /// How many numbers it has.
    pub size: ParameterSize,
    /// Where it starts; while it is measured, if it is.
    pub initial: f64,
    /// What its start is once the fresh model has been measured.
    pub measured: Option<MeasuredStart>,
}

/// Where a learnable starts that depends on what a pass through the fresh model shows.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredStart {
    /// The expression; what is left open are the measurements.
    pub expression: Scalar,
    /// The sublayer it is for, counted from 1 through the stack.
    pub sublayer: usize,
}

impl MeasuredStart {
    /// Its number, from the variance of the first stream before the blocks and the variances of the outputs of
    /// every sublayer in order.
    pub fn value(&self, embedding: f64, branches: &[f64]) -> Option<f64> {
        let before: f64 = branches[..(self.sublayer - 1).min(branches.len())].iter().sum();
        let known = BTreeMap::from([
            (crate::check::MEASURED_EMBEDDING.to_string(), Scalar::Number(embedding)),
            (crate::check::MEASURED_BRANCHES.to_string(), Scalar::Number(before)),
        ]);
        self.expression.fold(&known).number()
    }
}

/// The part of a name before any entry number: `w` of `w[3]`, with the number.
pub fn entry_of(name: &str) -> (&str, Option<usize>) {
    match name.strip_suffix(']').and_then(|name| name.split_once('[')) {
        Some((name, entry)) => (name, entry.parse().ok()),
        None => (name, None),
    }
}

/// What one norm of a section has of its own, with numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct NormNumbers {
    /// As the scheme writes it.
    pub symbols: NormSettings,
    /// Its epsilon, where it is not the run's.
    pub epsilon: Option<f64>,
    /// Where its gain starts.
    pub gain: f64,
}

/// Which part of the model a section is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Before the first block.
    Embed,
    /// A block, from 1.
    Block(usize),
    /// After the last block.
    Head,
}

impl Place {
    /// Its prefix in names of sites and parameters.
    pub fn prefix(self) -> String {
        match self {
            Place::Embed => "embed".into(),
            Place::Block(block) => format!("blocks.{block}"),
            Place::Head => "head".into(),
        }
    }
}

/// The steps of the embedding rule, of one block, or of the head.
#[derive(Debug, Clone, PartialEq)]
pub struct Section {
    /// Which part it is.
    pub place: Place,
    /// The steps in order.
    pub steps: Vec<Step>,
    /// How many slots they use.
    pub slots: usize,
    /// How many slots hold values on entry: the streams, then the entries of every history.
    pub inputs: usize,
    /// Entries of each history on entry.
    pub entries: Vec<usize>,
    /// Where the results are: the streams, then the entries of every history; or one alone for the head.
    pub outputs: Vec<Slot>,
    /// Norms that have something of their own, by name.
    pub norm_numbers: BTreeMap<String, NormNumbers>,
    /// The learnables.
    pub learnables: Vec<LearnedParameter>,
    /// The named constants that the author defined, with their numbers.
    pub constants: Vec<(String, Scalar)>,
    /// What the matrices start from.
    pub init: InitTable,
    /// Slots that no later step reads, by step.
    pub dead_after: Vec<Vec<Slot>>,
}

impl Section {
    /// The names of its norms, in order.
    pub fn norms(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().filter_map(|step| match step {
            Step::Mix(Mix { norm: Some(name), .. }) => Some(name.as_str()),
            _ => None,
        })
    }

    /// The slot that a value was computed in, before equations gave it names.
    pub fn origin(&self, mut slot: Slot) -> Slot {
        for step in self.steps.iter().rev() {
            if let Step::Assign { input, output, .. } = step
                && *output == slot
            {
                slot = *input;
            }
        }
        slot
    }

    /// Its gates, in order: name, and where the bias starts.
    pub fn gates(&self) -> impl Iterator<Item = (&str, &Coefficient)> {
        self.steps.iter().filter_map(|step| match step {
            Step::Gate { name, bias, .. } => Some((name.as_str(), bias)),
            _ => None,
        })
    }

    /// Whether the sublayer is applied in it.
    pub fn applies(&self, wanted: Sublayer) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Apply { sublayer, .. } if *sublayer == wanted))
    }
}

/// A scheme at a depth.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The scheme's name.
    pub scheme: String,
    /// For what dimensions.
    pub dimensions: Dimensions,
    /// Names of the streams; the first is the one that reports speak of.
    pub streams: Vec<String>,
    /// Names of the histories.
    pub histories: Vec<String>,
    /// The norm kind, where the scheme insists on one.
    pub norm: Option<NormKind>,
    /// Changes inside the sublayers.
    pub options: SublayerOptions,
    /// Matrices that are used with the mean over their output dimensions taken off.
    pub centred: Vec<MatrixKind>,
    /// Before the first block.
    pub embed: Section,
    /// The blocks in order.
    pub blocks: Vec<Section>,
    /// After the last block.
    pub head: Section,
}

impl Plan {
    /// Every section in order.
    pub fn sections(&self) -> impl Iterator<Item = &Section> {
        std::iter::once(&self.embed).chain(&self.blocks).chain([&self.head])
    }
}

impl Scheme {
    /// Works the scheme out at the given dimensions. What reaches no result, such as a last update of a
    /// stream that only sublayers read, is left out, and its parameters with it.
    ///
    /// # Errors
    /// If a constant is not finite at some block, a block has no body, or the depth is out of range.
    pub fn plan(&self, dimensions: Dimensions) -> Result<Plan, PlanError> {
        let mut plan = self.plan_whole(dimensions)?;
        let streams = plan.streams.len();
        let mut live = prune(&mut plan.head, &[true], streams);
        for section in plan.blocks.iter_mut().rev().chain([&mut plan.embed]) {
            live = prune(section, &live, streams);
        }
        Ok(plan)
    }

    /// The plan with all that the text says, whether anything reads it or not.
    pub(crate) fn plan_whole(&self, dimensions: Dimensions) -> Result<Plan, PlanError> {
        let fail = |message: String| PlanError { scheme: self.name.clone(), message };
        if dimensions.blocks == 0 || dimensions.blocks > MAX_BLOCKS {
            return Err(fail(format!("a stack has 1 to {MAX_BLOCKS} blocks, not {}", dimensions.blocks)));
        }
        let (word, phrase) = dimensions.stack.words();
        if let Some((_, why)) = self.refusals.iter().find(|(stack, _)| stack == word) {
            return Err(fail(format!("it has no form for {phrase}: {why}")));
        }
        let section = |place, entries: &[usize]| Planner::new(self, dimensions, place, entries).map_err(&fail);
        let none = vec![0; self.histories.len()];
        let (embed, mut entries) = section(Place::Embed, &none)?.embed().map_err(&fail)?;
        let mut blocks = Vec::with_capacity(dimensions.blocks);
        for block in 1..=dimensions.blocks {
            let (section, after) = section(Place::Block(block), &entries)?.block().map_err(&fail)?;
            blocks.push(section);
            entries = after;
        }
        let head = section(Place::Head, &entries)?.head().map_err(&fail)?;
        Ok(Plan {
            scheme: self.name.clone(),
            dimensions,
            streams: self.streams.clone(),
            histories: self.histories.clone(),
            norm: self.norm,
            options: self.options,
            centred: self.centred.clone(),
            embed,
            blocks,
            head,
        })
    }
}
