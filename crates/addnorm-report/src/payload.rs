//! The numbers behind the page's charts.

use addnorm_probe::{LayerStatistics, Number};
use addnorm_train::{MetricLine, RunOutcome};
use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct Payload {
    pub runs: Vec<RunPayload>,
    /// Names of the schemes, by number.
    pub schemes: Vec<String>,
    pub unigram: f64,
    pub floor: Option<f64>,
    pub blocks: usize,
}

#[derive(Serialize)]
pub(crate) struct RunPayload {
    label: String,
    /// The number of its scheme, for the colour.
    scheme: usize,
    /// `[step, loss]`
    train: Vec<(u64, Number)>,
    validation: Vec<(u64, Number)>,
    looks: Vec<Look>,
}

/// One look at the layers: a value for each block, the embedding first.
#[derive(Serialize)]
struct Look {
    step: u64,
    rms: Vec<Number>,
    cosine: Vec<Number>,
    gradient: Vec<Number>,
    parameter_gradient: Vec<Number>,
    attention_share: Vec<Number>,
    ffn_share: Vec<Number>,
}

impl Look {
    fn new(layers: &[LayerStatistics]) -> Self {
        let column = |pick: &dyn Fn(&LayerStatistics) -> Number| layers.iter().map(pick).collect();
        let missing = Number(f64::NAN);
        Look {
            step: layers.first().map_or(0, |layer| layer.step),
            rms: column(&|layer| rounded(layer.streams[0].rms)),
            cosine: column(&|layer| rounded(layer.token_cosine)),
            gradient: column(&|layer| rounded(layer.streams[0].gradient_norm)),
            parameter_gradient: column(&|layer| rounded(layer.parameter_gradient_norm)),
            attention_share: column(&|layer| rounded(layer.attention_share.unwrap_or(missing))),
            ffn_share: column(&|layer| rounded(layer.ffn_share.unwrap_or(missing))),
        }
    }
}

/// Six digits are more than a picture shows, and a third of the bytes.
fn rounded(value: Number) -> Number {
    if value.0.is_finite() { Number(format!("{:.5e}", value.0).parse().unwrap_or(value.0)) } else { value }
}

impl RunPayload {
    pub(crate) fn new(outcome: &RunOutcome, scheme: usize) -> Self {
        let (mut train, mut validation) = (Vec::new(), Vec::new());
        for line in &outcome.metrics {
            match line {
                MetricLine::Train { step, loss, .. } => train.push((*step, rounded(*loss))),
                MetricLine::Validation { step, loss, .. } => validation.push((*step, rounded(*loss))),
            }
        }
        RunPayload {
            label: outcome.spec.label.clone(),
            scheme,
            train,
            validation,
            looks: outcome.layers_by_step().into_iter().map(Look::new).collect(),
        }
    }
}
