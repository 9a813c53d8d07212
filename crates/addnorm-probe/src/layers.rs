//! Statistics of every block.

use std::collections::BTreeMap;
use std::sync::Arc;

use addnorm_nn::{
    ForwardOptions, GradientTap, Model, Observer, Tensor, Tokens, Weights, records_gradients, statistics,
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

/// What was measured of one block. Block 0 stands for the embedding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerStatistics {
    /// The training step, from 0, before whose update this was measured.
    pub step: u64,
    /// The block, from 1; 0 for the embedding.
    pub block: usize,
    /// Every stream; the first is the one that tables speak of.
    pub streams: Vec<StreamStatistics>,
    /// Mean cosine between different tokens of a sequence, in the first stream. At 1 every token is alike.
    pub token_cosine: Number,
    /// RMS of what the attention adds, after its output norm and factors, over the RMS of the sum.
    pub attention_share: Option<Number>,
    /// The same of the feed-forward network.
    pub ffn_share: Option<Number>,
    /// Norm of the gradient of the mean loss by all of the block's parameters together.
    pub parameter_gradient_norm: Number,
}

#[derive(Default)]
struct Recorder {
    /// Statistics and taps by block and stream.
    streams: BTreeMap<(usize, usize), (f64, Option<GradientTap>)>,
    cosines: BTreeMap<usize, f64>,
    shares: BTreeMap<(usize, Sublayer), f64>,
}

fn block_of(place: Place) -> Option<usize> {
    match place {
        Place::Embed => Some(0),
        Place::Block(block) => Some(block),
        Place::Head => None,
    }
}

impl Observer for Recorder {
    fn stream(&mut self, place: Place, stream: usize, x: &mut Tensor<3>) {
        let Some(block) = block_of(place) else { return };
        if stream == 0 {
            self.cosines.insert(block, statistics::mean_token_cosine(x));
        }
        let rms = statistics::rms(x);
        let into = records_gradients(x).then(GradientTap::new);
        if let Some(into) = &into {
            *x = tap(x.clone(), into);
        }
        self.streams.insert((block, stream), (rms, into));
    }

    fn wants_contributions(&self) -> bool {
        true
    }

    fn contribution(&mut self, place: Place, sublayer: Sublayer, contribution: &Tensor<3>, sum: &Tensor<3>) {
        let Some(block) = block_of(place) else { return };
        // A scheme with several streams adds a sublayer more than once; the first addition counts.
        self.shares.entry((block, sublayer)).or_insert_with(|| statistics::rms(contribution) / statistics::rms(sum));
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
    tokens: &Tokens,
    targets: Arc<[u32]>,
    step: u64,
    recompute: usize,
) -> Vec<LayerStatistics> {
    let mut recorder = Recorder::default();
    let scale = 1.0 / targets.len().max(1) as f64;
    let options = ForwardOptions { step, recompute, ..ForwardOptions::default() };
    let result = model.loss_and_gradients(weights, tokens, targets, scale, options, &mut recorder);
    let mut squares: BTreeMap<usize, f64> = BTreeMap::new();
    if let Ok(result) = &result {
        for (info, gradient) in model.parameters().iter().zip(&result.gradients) {
            let square = gradient.sum_of_squares();
            if let Some(block) = info.block {
                *squares.entry(block).or_default() += square;
            } else if info.name.starts_with("embed") || info.name.starts_with("positions") {
                *squares.entry(0).or_default() += square;
            }
        }
    }
    let names = &model.plan().streams;
    (0..=model.plan().blocks.len())
        .map(|block| {
            let streams = names.iter().enumerate().map(|(stream, name)| {
                let (rms, gradient_norm) = match recorder.streams.get(&(block, stream)) {
                    Some((rms, Some(into))) => {
                        (*rms, into.take().map_or(0.0, |gradient| sum_of_squares(&gradient).sqrt()))
                    }
                    Some((rms, None)) => (*rms, f64::NAN),
                    None => (f64::NAN, f64::NAN),
                };
                StreamStatistics { name: name.clone(), rms: rms.into(), gradient_norm: gradient_norm.into() }
            });
            LayerStatistics {
                step,
                block,
                streams: streams.collect(),
                token_cosine: recorder.cosines.get(&block).copied().unwrap_or(f64::NAN).into(),
                attention_share: recorder.shares.get(&(block, Sublayer::Attention)).map(|&share| share.into()),
                ffn_share: recorder.shares.get(&(block, Sublayer::FeedForward)).map(|&share| share.into()),
                parameter_gradient_norm: squares.get(&block).copied().unwrap_or(0.0).sqrt().into(),
            }
        })
        .collect()
}
