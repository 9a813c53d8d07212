//! Statistics of every block.

use std::collections::BTreeMap;
use std::sync::Arc;

use addnorm_nn::{
    ForwardOptions, GradientTap, IGNORED, Inputs, Model, Observer, Tensor, Weights, records_gradients, statistics,
    sum_of_squares, tap,
};
use addnorm_scheme::{Place, Sublayer};
use serde::{Deserialize, Serialize};

use crate::number::Number;

/// One residual stream as a block leaves it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StreamStatistics {
    /// Its name in the scheme.
    pub name: String,
    /// Root of the mean square over all tokens and dimensions.
    pub rms: Number,
    /// Norm of the gradient of the mean loss by this stream, over all tokens and dimensions. NaN where the
    /// device records none, 0 where no path leads on from it.
    pub gradient_norm: Number,
}

/// What was measured of one block. Block 0 stands for the embedding. Of a pair the encoder's blocks come first,
/// then the decoder's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerStatistics {
    /// The training step, from 0, before whose update this was measured.
    pub step: u64,
    /// The stack of a pair: `encoder` or `decoder`; empty for a stack by itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stack: String,
    /// The block, from 1; 0 for the embedding.
    pub block: usize,
    /// Every stream; the first is the one that tables speak of.
    pub streams: Vec<StreamStatistics>,
    /// Mean cosine between different tokens of a sequence, in the first stream. At 1 every token is alike.
    pub token_cosine: Number,
    /// RMS of what the attention adds, after its output norm and factors, over the RMS of the sum.
    pub attention_share: Option<Number>,
    /// The same of a decoder's attention to its encoder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cross_share: Option<Number>,
    /// The same of the feed-forward network.
    pub ffn_share: Option<Number>,
    /// Norm of the gradient of the mean loss by all of the block's parameters together.
    pub parameter_gradient_norm: Number,
}

/// A stack and a block of it.
type At = (usize, usize);

#[derive(Default)]
struct Recorder {
    stack: usize,
    /// Statistics and taps by block and stream.
    streams: BTreeMap<(At, usize), (f64, Option<GradientTap>)>,
    cosines: BTreeMap<At, f64>,
    shares: BTreeMap<(At, Sublayer), f64>,
}

fn block_of(place: Place) -> Option<usize> {
    match place {
        Place::Embed => Some(0),
        Place::Block(block) => Some(block),
        Place::Head => None,
    }
}

impl Observer for Recorder {
    fn stack(&mut self, stack: usize) {
        self.stack = stack;
    }

    fn stream(&mut self, place: Place, stream: usize, x: &mut Tensor<3>) {
        let Some(block) = block_of(place) else { return };
        if stream == 0 {
            self.cosines.insert((self.stack, block), statistics::mean_token_cosine(x));
        }
        let rms = statistics::rms(x);
        let into = records_gradients(x).then(GradientTap::new);
        if let Some(into) = &into {
            *x = tap(x.clone(), into);
        }
        self.streams.insert(((self.stack, block), stream), (rms, into));
    }

    fn wants_contributions(&self) -> bool {
        true
    }

    fn contribution(&mut self, place: Place, sublayer: Sublayer, contribution: &Tensor<3>, sum: &Tensor<3>) {
        let Some(block) = block_of(place) else { return };
        // A scheme with several streams adds a sublayer more than once; the first addition counts.
        let at = ((self.stack, block), sublayer);
        self.shares.entry(at).or_insert_with(|| statistics::rms(contribution) / statistics::rms(sum));
    }
}

/// Runs one batch forward and backward, without dropout and without touching the weights, and measures every
/// block. Gradients are those of the mean loss. `recompute` is the number of blocks that the backward pass runs
/// again at a time; 0 keeps everything.
///
/// # Panics
/// If there is not one target a position, or a token is not in the vocabulary.
pub fn measure(
    model: &Model,
    weights: &Weights,
    inputs: impl Into<Inputs>,
    targets: Arc<[u32]>,
    step: u64,
    recompute: usize,
) -> Vec<LayerStatistics> {
    let mut recorder = Recorder::default();
    let counted = targets.iter().filter(|&&target| target != IGNORED).count();
    let scale = 1.0 / counted.max(1) as f64;
    let options = ForwardOptions { step, recompute, ..ForwardOptions::default() };
    let result = model.loss_and_gradients(weights, inputs, targets, scale, options, &mut recorder);
    let plans = model.plans();
    let stack_of = |name: &str| usize::from(plans.len() > 1 && name.starts_with("decoder."));
    let mut squares: BTreeMap<At, f64> = BTreeMap::new();
    if let Ok(result) = &result {
        for (info, gradient) in model.parameters().iter().zip(&result.gradients) {
            let square = gradient.sum_of_squares();
            let stack = stack_of(&info.name);
            let name = info.name.trim_start_matches("encoder.").trim_start_matches("decoder.");
            if let Some(block) = info.block {
                *squares.entry((stack, block)).or_default() += square;
            } else if !name.starts_with("head") {
                *squares.entry((stack, 0)).or_default() += square;
            }
        }
    }
    let mut layers = Vec::new();
    for (stack, plan) in plans.iter().enumerate() {
        for block in 0..=plan.blocks.len() {
            let at = (stack, block);
            let streams = plan.streams.iter().enumerate().map(|(stream, name)| {
                let (rms, gradient_norm) = match recorder.streams.get(&(at, stream)) {
                    Some((rms, Some(into))) => {
                        (*rms, into.take().map_or(0.0, |gradient| sum_of_squares(&gradient).sqrt()))
                    }
                    Some((rms, None)) => (*rms, f64::NAN),
                    None => (f64::NAN, f64::NAN),
                };
                StreamStatistics { name: name.clone(), rms: rms.into(), gradient_norm: gradient_norm.into() }
            });
            let share = |sublayer| recorder.shares.get(&(at, sublayer)).map(|&share| share.into());
            let name = if plans.len() == 1 { "" } else { ["encoder", "decoder"][stack] };
            layers.push(LayerStatistics {
                step,
                stack: name.to_string(),
                block,
                streams: streams.collect(),
                token_cosine: recorder.cosines.get(&at).copied().unwrap_or(f64::NAN).into(),
                attention_share: share(Sublayer::Attention),
                cross_share: share(Sublayer::Cross),
                ffn_share: share(Sublayer::FeedForward),
                parameter_gradient_norm: squares.get(&at).copied().unwrap_or(0.0).sqrt().into(),
            });
        }
    }
    layers
}
