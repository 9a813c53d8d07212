//! The algebra of costs: parameters, norms, arithmetic and memory of a scheme, without a tensor.

use std::collections::BTreeSet;
use std::convert::Infallible;

use crate::algebra::{Algebra, interpret};
use crate::plan::{Mix, Place, Plan, Section, Stack};
use crate::scheme::{AttentionOptions, HeadNormScope, NormKind, Sublayer, SublayerOptions};

/// The sizes that the price depends on besides the scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_width: usize,
    /// Width of the hidden layer of the feed-forward network.
    pub ffn_width: usize,
    /// Whether the feed-forward network has a gate matrix.
    pub gated: bool,
    /// Whether the linear maps have biases.
    pub bias: bool,
    /// Whether queries, keys and values have.
    pub qkv_bias: bool,
    /// Norm kind, where the scheme leaves it open.
    pub norm: NormKind,
    /// Tokens of the vocabulary, or classes.
    pub answers: usize,
    /// Positions of one sequence.
    pub context: usize,
    /// Trainable numbers outside the plan: embeddings, positions, the output matrix unless it is tied.
    pub outside: usize,
    /// Whether all blocks of a stack share one set of parameters.
    pub shared_blocks: bool,
}

/// What a model costs.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Cost {
    /// Trainable numbers, a tied head counted once.
    pub parameters: usize,
    /// Trainable numbers of each block, those of a pair's encoder first. Shared ones are named at every block.
    pub block_parameters: Vec<usize>,
    /// Norms of each block, those inside the sublayers included.
    pub block_norms: Vec<usize>,
    /// Norms outside the blocks (on the embedding, before the head).
    pub other_norms: usize,
    /// Floating-point operations of one forward pass, per token, averaged over a full context, and in a pair per
    /// token of either text; a multiplication and an addition count as two. A training step takes about three times as many.
    pub forward_flops_per_token: f64,
    /// Bytes of `f32` activations kept for the backward pass, per token.
    pub activation_bytes_per_token: f64,
}

/// Prices a plan, or the two of a pair.
pub fn cost(plans: &[Plan], sizes: Sizes) -> Cost {
    let mut whole = Cost {
        parameters: sizes.outside,
        block_parameters: Vec::new(),
        block_norms: Vec::new(),
        other_norms: 0,
        forward_flops_per_token: 0.0,
        activation_bytes_per_token: 0.0,
    };
    let mut width = 0;
    for plan in plans {
        let norm = plan.norm.unwrap_or(sizes.norm);
        width = norm.stored_width(plan.dimensions.width);
        let mut pricer = Pricer {
            width,
            heads: plan.dimensions.heads,
            norm,
            options: plan.options,
            stack: plan.dimensions.stack,
            sizes,
            parameters: 0,
            norms: 0,
            flops: 0.0,
            kept: 0.0,
            kept_values: BTreeSet::new(),
            values: 0,
            blocks: Vec::new(),
            other_norms: 0,
        };
        // The embedding itself.
        let embedding = pricer.value();
        let Ok(_) = interpret(plan, &mut pricer, embedding);
        let again = if sizes.shared_blocks { pricer.blocks.iter().skip(1).map(|block| block.0).sum() } else { 0 };
        whole.parameters += pricer.parameters - again;
        whole.block_parameters.extend(pricer.blocks.iter().map(|block| block.0));
        whole.block_norms.extend(pricer.blocks.iter().map(|block| block.1));
        whole.other_norms += pricer.other_norms;
        whole.forward_flops_per_token += pricer.flops;
        whole.activation_bytes_per_token += 4.0 * pricer.kept;
    }
    whole.forward_flops_per_token += 2.0 * (sizes.answers * width) as f64;
    // The head keeps its input and the logits.
    whole.activation_bytes_per_token += 4.0 * (width + sizes.answers) as f64;
    whole
}

struct Pricer {
    width: usize,
    heads: usize,
    norm: NormKind,
    options: SublayerOptions,
    stack: Stack,
    sizes: Sizes,
    parameters: usize,
    norms: usize,
    flops: f64,
    /// Numbers kept for the backward pass, per token.
    kept: f64,
    kept_values: BTreeSet<usize>,
    values: usize,
    blocks: Vec<(usize, usize)>,
    other_norms: usize,
}

/// Operations of a norm per element: mean, variance, normalisation, gain and bias.
const NORM_FLOPS: f64 = 8.0;

impl Pricer {
    /// A new value, by number.
    fn value(&mut self) -> usize {
        self.values += 1;
        self.values
    }

    fn keep(&mut self, value: usize) {
        if self.kept_values.insert(value) {
            self.kept += self.width as f64;
        }
    }

    fn count_norm(&mut self, width: usize, rows: usize) {
        self.norms += 1;
        self.parameters += self.norm.parameters(width);
        self.flops += NORM_FLOPS * (width * rows) as f64;
    }

    fn linear(&mut self, input: usize, output: usize) {
        self.linear_with(input, output, self.sizes.bias);
    }

    fn linear_with(&mut self, input: usize, output: usize, bias: bool) {
        self.parameters += input * output + if bias { output } else { 0 };
        self.flops += 2.0 * (input * output) as f64;
    }

    fn attention(&mut self, options: AttentionOptions, causal: bool) {
        let (width, heads, head) = (self.width, self.heads, self.sizes.head_width);
        let (side_by_side, kv) = (head * heads, head * self.sizes.kv_heads);
        self.linear_with(width, side_by_side, self.sizes.qkv_bias);
        self.linear_with(width, kv, self.sizes.qkv_bias);
        self.linear_with(width, kv, self.sizes.qkv_bias);
        // The projections, the heads' outputs, and two numbers of every softmax.
        self.kept += (2 * side_by_side + 2 * kv + 2 * heads) as f64;
        if let Some(norms) = options.projection_norms {
            for (present, count) in
                [(norms.query, heads), (norms.key, self.sizes.kv_heads), (norms.value, self.sizes.kv_heads)]
            {
                if present {
                    match norms.scope {
                        // Computed again in the backward pass.
                        HeadNormScope::PerHead => self.count_norm(head, count),
                        HeadNormScope::FullWidth => {
                            self.count_norm(head * count, 1);
                            self.kept += (head * count) as f64;
                        }
                    }
                }
            }
        }
        // Scores and weighted values over the keys that a token sees on average, and the softmax.
        let context = self.sizes.context as f64;
        let seen = if causal { (context + 1.0) / 2.0 } else { context };
        self.flops += seen * (4.0 * side_by_side as f64 + 5.0 * heads as f64);
        if options.scaled_heads {
            self.parameters += heads;
            self.flops += side_by_side as f64;
            self.kept += side_by_side as f64;
        }
        if options.inner_norm {
            self.count_norm(side_by_side, 1);
            self.kept += side_by_side as f64;
        }
        self.linear(side_by_side, width);
    }

    fn feed_forward(&mut self) {
        let (width, hidden) = (self.width, self.sizes.ffn_width);
        let inputs = if self.sizes.gated { 2 } else { 1 };
        for _ in 0..inputs {
            self.linear(width, hidden);
        }
        self.flops += 10.0 * hidden as f64;
        // What the non-linearity gives is computed again, unless a norm reads it.
        self.kept += (inputs * hidden) as f64;
        if self.options.ffn_inner_norm {
            self.count_norm(hidden, 1);
            self.kept += (2 * hidden) as f64;
        }
        self.linear(hidden, width);
    }
}

impl Algebra for Pricer {
    type Value = usize;
    type Error = Infallible;

    fn mix(&mut self, _: Place, mix: &Mix, inputs: &[usize]) -> Result<usize, Infallible> {
        let width = self.width as f64;
        let scaled = mix.terms.iter().filter(|term| !term.coefficient.folded.is_one()).count();
        self.flops += width * (mix.terms.len() - 1 + scaled) as f64;
        // A learned factor's gradient needs what it multiplies.
        for (term, &input) in mix.terms.iter().zip(inputs) {
            let mut learned = false;
            term.coefficient.folded.names(&mut |name| learned |= name != "t");
            if learned {
                self.keep(input);
            }
        }
        let output = self.value();
        if mix.norm.is_some() {
            self.count_norm(self.width, 1);
            // The norm keeps what it reads: a stream that is there anyway, or a sum made for it.
            match inputs {
                [only] if mix.terms[0].coefficient.folded.is_one() => self.keep(*only),
                _ => self.kept += width,
            }
        }
        if !mix.scale.folded.is_one() {
            self.flops += width;
        }
        Ok(output)
    }

    fn apply(&mut self, _: Place, sublayer: Sublayer, input: usize) -> Result<usize, Infallible> {
        self.keep(input);
        match sublayer {
            Sublayer::Attention => {
                let causal = matches!(self.stack, Stack::Decoder | Stack::PairDecoder { .. });
                self.attention(self.options.attention, causal);
            }
            Sublayer::Cross => self.attention(self.options.cross, false),
            Sublayer::FeedForward => self.feed_forward(),
        }
        Ok(self.value())
    }

    fn gate(&mut self, _: Place, _: &str, input: usize) -> Result<usize, Infallible> {
        self.keep(input);
        self.parameters += self.width * self.width + self.width;
        self.flops += (2 * self.width + 4) as f64 * self.width as f64;
        Ok(self.value())
    }

    fn multiply(&mut self, _: Place, gate: usize, value: usize) -> Result<usize, Infallible> {
        self.keep(gate);
        self.keep(value);
        self.flops += self.width as f64;
        Ok(self.value())
    }

    fn enter(&mut self, section: &Section, _: &mut [usize]) -> Result<(), Infallible> {
        if let Place::Block(_) = section.place {
            self.blocks.push((self.parameters, self.norms));
        } else {
            self.other_norms += section.norms().count();
        }
        self.parameters +=
            section.learnables.iter().map(|learnable| learnable.size.elements(self.width)).sum::<usize>();
        Ok(())
    }

    fn leave(&mut self, section: &Section, _: &mut [usize]) -> Result<(), Infallible> {
        if let (Place::Block(_), Some(block)) = (section.place, self.blocks.last_mut()) {
            *block = (self.parameters - block.0, self.norms - block.1);
        }
        Ok(())
    }
}
