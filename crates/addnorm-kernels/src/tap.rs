//! An identity that remembers the gradient which passes through it.

use std::sync::{Arc, Mutex};

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;

use crate::flex::{self, Kernel};
use crate::slot::Slot;

/// Where a [`tap`] leaves the gradient. Cheap to clone; clones share what they hold.
#[derive(Debug, Clone, Default)]
pub struct GradientTap(Arc<Mutex<Option<FlexTensor>>>);

impl GradientTap {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// The gradient that passed in the last backward pass, if one did.
    pub fn take(&self) -> Option<Tensor<3>> {
        let taken = self.0.lock().map(|mut held| held.take()).unwrap_or(None);
        taken.map(Tensor::from_primitive::<Flex>)
    }
}

/// Whether a [`tap`] on this tensor records anything: on the CPU only.
pub fn records_gradients(x: &Tensor<3>) -> bool {
    flex::is_flex(x)
}

/// `x`, unchanged. When the backward pass comes through here, the gradient of the loss by `x` is left in
/// `into`, summed over all uses of the result. On devices other than the CPU nothing is recorded.
pub fn tap(x: Tensor<3>, into: &GradientTap) -> Tensor<3> {
    if flex::is_flex(&x) { flex::run(Tap(into.clone()), vec![flex::input(x)]) } else { x }
}

#[derive(Debug, Clone)]
struct Tap(GradientTap);

impl Kernel for Tap {
    fn kept(&self, _: Vec<FlexTensor>) -> Vec<FlexTensor> {
        Vec::new()
    }

    fn forward(&self, inputs: &[FlexTensor], _: bool) -> (FlexTensor, Vec<FlexTensor>) {
        (inputs[0].clone(), Vec::new())
    }

    fn backward(&self, _: &[FlexTensor], _: &[FlexTensor], upstream: FlexTensor, slots: &mut [Slot]) {
        if let Ok(mut held) = self.0.0.lock() {
            *held = Some(upstream.clone());
        }
        slots[0].put(1.0, &upstream);
    }
}
