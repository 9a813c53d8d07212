//! A scheme at a depth: every block as a list of steps, constants as numbers, every value with a name.
//!
//! The plan is what an [`Algebra`](crate::Algebra) walks. Adds, scales and the norm that meet are one
//! step ([`Mix`]), whatever scheme they come from: a pattern is recognised by its shape alone.

use std::collections::BTreeMap;

use crate::init::InitTable;
use crate::planner::{Planner, prune};
use crate::scalar::Scalar;
use crate::scheme::*;

/// Deepest stack that is planned.
pub const MAX_BLOCKS: usize = 100_000;

/// Where a stack stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// A learnable of one block.
#[derive(Debug, Clone, PartialEq)]
pub struct LearnedParameter {
    /// Its name in the block, such as `lambda` or `attn.lambda`.
    pub name: String,
    /// A vector over the width instead of one scalar.
    pub vector: bool,
    /// Where it starts.
    pub initial: f64,
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
    /// How many slots they use. The first ones hold the streams on entry.
    pub slots: usize,
    /// Where the results are: one for each stream, or one alone for the head.
    pub outputs: Vec<Slot>,
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
    /// The norm kind, where the scheme insists on one.
    pub norm: Option<NormKind>,
    /// Changes inside the sublayers.
    pub options: SublayerOptions,
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
        let section = |place| Planner::new(self, dimensions, place).map_err(&fail);
        let embed = section(Place::Embed)?.embed().map_err(&fail)?;
        let blocks = (1..=dimensions.blocks)
            .map(|block| section(Place::Block(block))?.block().map_err(&fail))
            .collect::<Result<Vec<_>, _>>()?;
        let head = section(Place::Head)?.head().map_err(&fail)?;
        Ok(Plan {
            scheme: self.name.clone(),
            dimensions,
            streams: self.streams.clone(),
            norm: self.norm,
            options: self.options,
            embed,
            blocks,
            head,
        })
    }
}
