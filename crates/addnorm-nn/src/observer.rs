//! Looking at a forward pass from outside.

use addnorm_scheme::{Place, Sublayer};
use burn::tensor::Tensor;

/// Sees the values of a forward pass by their names, and may replace them by equal ones that record
/// gradients. Every method does nothing unless overridden.
pub trait Observer {
    /// Whether it looks at anything. A pass that nobody looks at may run in parts.
    fn looks(&self) -> bool {
        true
    }

    /// What follows happens in this stack: of a pair, 0 is the encoder and 1 the decoder.
    fn stack(&mut self, stack: usize) {
        let _ = stack;
    }

    /// A residual stream as it leaves a section: the embedding rule or a block. `x: [batch, time, d]`.
    fn stream(&mut self, place: Place, stream: usize, x: &mut Tensor<3>) {
        let _ = (place, stream, x);
    }

    /// A sublayer's output, before any norm, scale or addition.
    fn sublayer_output(&mut self, place: Place, sublayer: Sublayer, x: &mut Tensor<3>) {
        let _ = (place, sublayer, x);
    }

    /// A sublayer's contribution as it is added: after its output norm and its factor. `sum` is what it is
    /// part of, before any norm of that sum.
    fn contribution(&mut self, place: Place, sublayer: Sublayer, contribution: &Tensor<3>, sum: &Tensor<3>) {
        let _ = (place, sublayer, contribution, sum);
    }

    /// Whether [`contribution`](Observer::contribution) is wanted; it costs a pass over the stream.
    fn wants_contributions(&self) -> bool {
        false
    }

    /// A value under a stop-gradient. What is returned takes its place.
    fn stopped(&mut self, x: Tensor<3>) -> Tensor<3> {
        x
    }
}

/// Looks at nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn looks(&self) -> bool {
        false
    }
}
