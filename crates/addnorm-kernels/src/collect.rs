//! Where the backward pass of a part of the work begins, and where what it finds is brought together.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::Flex;
use burn::backend::autodiff::NodeId;
use burn::backend::flex::FlexTensor;
use burn::tensor::{Gradients, Tensor};

use crate::buffer::Buffer;
use crate::flex::{self, Kernel, for_element};
use crate::parallel::alone;
use crate::slot::Slot;

/// The gradient of one parameter, summed over parts of a batch that several threads work on. Each part may
/// bring it more than once. Sums are made in the order of the parts, whichever comes first, and as soon as
/// all have come, so that the parts' gradients do not pile up.
#[derive(Debug)]
pub struct GradientSum(Mutex<State>);

#[derive(Debug)]
struct State {
    parts: Vec<VecDeque<FlexTensor>>,
    total: Option<FlexTensor>,
}

impl GradientSum {
    /// Nothing yet, of so many parts.
    pub fn new(parts: usize) -> Self {
        GradientSum(Mutex::new(State { parts: vec![VecDeque::new(); parts], total: None }))
    }

    pub(crate) fn bring(&self, part: usize, gradient: FlexTensor) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.parts[part].push_back(gradient);
        if state.parts.iter().any(VecDeque::is_empty) {
            return;
        }
        let mut sum = Slot::needed(state.total.take());
        // On this thread only: while it waited for others it might take up another part's backward pass, which
        // would wait for this lock.
        alone(|| {
            for part in &mut state.parts {
                if let Some(gradient) = part.pop_front() {
                    sum.put(1.0, &gradient);
                }
            }
        });
        state.total = sum.into_gradient();
    }

    /// The sum, if anything came.
    pub fn take<const D: usize>(&self) -> Option<Tensor<D>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.total.take().map(Tensor::from_primitive::<Flex>)
    }

    /// Adds a gradient that came another way.
    pub fn add<const D: usize>(&self, part: usize, gradient: Tensor<D>) {
        self.bring(part, flex::plain(gradient));
    }
}

/// While it lives, what kernels find for a leaf goes to a [`GradientSum`].
#[derive(Debug)]
pub struct LeafCollector(NodeId);

impl Drop for LeafCollector {
    fn drop(&mut self) {
        flex::forget_leaf(self.0);
    }
}

/// Sends what kernels find for a leaf to `into`, as that of one part, at the moment they find it; at the leaf
/// itself it would wait for the end of the backward pass. What Burn's own operators find stays at the leaf. Only
/// for the backward pass of this thread, and on the CPU.
pub fn collect_leaf<const D: usize>(leaf: &Tensor<D>, into: &Arc<GradientSum>, part: usize) -> LeafCollector {
    let flex::Input::Tracked(tracked) = flex::input(leaf.clone()) else {
        panic!("a leaf is tracked");
    };
    flex::note_leaf(tracked.id(), Arc::clone(into), part);
    LeafCollector(tracked.id())
}

/// Whether [`collect_leaf`] works for this tensor.
pub fn collects<const D: usize>(x: &Tensor<D>) -> bool {
    flex::is_flex(x)
}

/// A value whose backward pass starts with the given gradients: where a model is worked on in segments, those
/// that the later segment found for what this one gave.
///
/// # Panics
/// If there is no value.
pub fn resume(values: Vec<(Tensor<3>, Tensor<3>)>) -> Tensor<1> {
    let add = |sum: Tensor<1>, part: Tensor<1>| sum + part;
    if !flex::is_flex(&values[0].0) {
        let products = values.into_iter().map(|(value, gradient)| (value * gradient).sum());
        return products.reduce(add).expect("there is a value");
    }
    let group = |group: &[(Tensor<3>, Tensor<3>)]| {
        let pairs = group.iter().cloned();
        let (values, gradients): (Vec<_>, Vec<_>) =
            pairs.map(|(value, gradient)| (flex::input(value), flex::plain(gradient))).unzip();
        flex::run(Resume { gradients }, values)
    };
    values.chunks(flex::MOST_INPUTS).map(group).reduce(add).expect("there is a value")
}

/// The gradients of `root` by every leaf that has no [`LeafCollector`].
pub fn backward(root: Tensor<1>) -> Gradients {
    flex::in_backward_pass(|| root.backward())
}

#[derive(Debug, Clone)]
struct Resume {
    gradients: Vec<FlexTensor>,
}

impl Kernel for Resume {
    fn kept(&self, _: Vec<FlexTensor>) -> Vec<FlexTensor> {
        Vec::new()
    }

    fn forward(&self, inputs: &[FlexTensor], _: bool) -> (FlexTensor, Vec<FlexTensor>) {
        for_element!(&inputs[0], E => (Buffer::<E>::zeros(1).into_tensor(&[1]), Vec::new()))
    }

    fn backward(&self, _: &[FlexTensor], _: &[FlexTensor], _: FlexTensor, slots: &mut [Slot]) {
        for (slot, gradient) in slots.iter_mut().zip(&self.gradients) {
            slot.put(1.0, gradient);
        }
    }
}
