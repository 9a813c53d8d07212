//! The bridge between a kernel on slices and Burn's tensors and autodiff.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex, TensorMetadata};
use burn::tensor::Tensor;

use crate::collect::GradientSum;
use crate::element::Element;
use crate::slot::Slot;

type Tracked = FloatTensor<Autodiff<Flex>>;

/// A differentiable operator on contiguous CPU tensors, all of one number type.
pub(crate) trait Kernel: Debug + Send + Sync + 'static {
    /// Those of the inputs that the backward pass reads. The others are not kept alive.
    fn kept(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        inputs
    }

    /// The output, and what the backward pass needs besides the inputs; nothing where `tracked` says that
    /// there will be no backward pass.
    fn forward(&self, inputs: &[FlexTensor], tracked: bool) -> (FlexTensor, Vec<FlexTensor>);

    /// Puts the gradient of each input that is needed into its slot. `inputs` are those that were kept.
    fn backward(&self, inputs: &[FlexTensor], saved: &[FlexTensor], upstream: FlexTensor, slots: &mut [Slot]);
}

/// An input of any rank: what is left of a tensor once its rank no longer matters.
pub(crate) enum Input {
    Tracked(Tracked),
    Plain(FlexTensor),
}

/// Whether a tensor lives on the CPU backend that the kernels are for.
pub(crate) fn is_flex<const D: usize>(tensor: &Tensor<D>) -> bool {
    use burn::backend::DispatchDevice;
    let device = tensor.device();
    match device.as_dispatch() {
        DispatchDevice::Flex(_) => true,
        DispatchDevice::Autodiff(inner) => matches!(**inner, DispatchDevice::Flex(_)),
        #[allow(unreachable_patterns)]
        _ => false,
    }
}

/// Gives up a tensor's rank. Call only where [`is_flex`] holds.
pub(crate) fn input<const D: usize>(tensor: Tensor<D>) -> Input {
    if tensor.is_autodiff() {
        Input::Tracked(tensor.try_into_primitive::<Autodiff<Flex>>().expect("the tensor lives on flex"))
    } else {
        Input::Plain(tensor.try_into_primitive::<Flex>().expect("the tensor lives on flex"))
    }
}

/// The plain CPU tensor under a tensor, tracked or not.
pub(crate) fn plain<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    match input(tensor) {
        Input::Tracked(tracked) => contiguous(tracked.into_primitive()),
        Input::Plain(tensor) => contiguous(tensor),
    }
}

/// A tensor in row-major order; free where it is so already.
pub(crate) fn contiguous(tensor: FlexTensor) -> FlexTensor {
    if tensor.layout().is_contiguous() && tensor.layout().start_offset() == 0 { tensor } else { tensor.to_contiguous() }
}

/// The elements of a contiguous tensor.
pub(crate) fn slice<E: Element>(tensor: &FlexTensor) -> &[E] {
    tensor.as_slice::<E>().expect("kernels read contiguous tensors of their own number type")
}

/// The sizes of a tensor.
pub(crate) fn dims(tensor: &FlexTensor) -> Vec<usize> {
    tensor.shape().as_slice().to_vec()
}

/// Runs `$body` with `$element` as the number type of `$tensor`.
macro_rules! for_element {
    ($tensor:expr, $element:ident => $body:expr) => {
        match burn::backend::TensorMetadata::dtype($tensor) {
            burn::tensor::DType::F64 => {
                type $element = f64;
                $body
            }
            burn::tensor::DType::F32 => {
                type $element = f32;
                $body
            }
            other => panic!("the CPU kernels compute in f32 and f64, not {other:?}"),
        }
    };
}
pub(crate) use for_element;

thread_local! {
    /// Nodes that were given a gradient by a kernel and have not used it yet. Burn does not say whether a node
    /// has a gradient already, and asking for one that is not there is a panic.
    static GIVEN: RefCell<HashSet<NodeId>> = RefCell::default();
    /// Leaves whose gradients do not wait at the leaf: where they go, and as which part's.
    static LEAVES: RefCell<HashMap<NodeId, (Arc<GradientSum>, usize)>> = RefCell::default();
    /// Backward passes on this thread: one, or another that the thread took up while it waited in the first.
    static PASSES: Cell<usize> = const { Cell::new(0) };
}

pub(crate) fn note_leaf(leaf: NodeId, into: Arc<GradientSum>, part: usize) {
    LEAVES.with_borrow_mut(|leaves| leaves.insert(leaf, (into, part)));
}

pub(crate) fn forget_leaf(leaf: NodeId) {
    LEAVES.with_borrow_mut(|leaves| leaves.remove(&leaf));
}

/// Runs a backward pass. What kernels have noted of its nodes is forgotten afterwards: nodes of Burn's own
/// operators never say that they have used their gradient.
pub(crate) fn in_backward_pass<R>(pass: impl FnOnce() -> R) -> R {
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            PASSES.set(PASSES.get() - 1);
            if PASSES.get() == 0 {
                GIVEN.with_borrow_mut(HashSet::clear);
            }
        }
    }
    PASSES.set(PASSES.get() + 1);
    let _end = End;
    pass()
}

/// Tensors that one kernel takes.
pub(crate) const MOST_INPUTS: usize = 9;

/// The node of a kernel in the graph of the backward pass. Which kernel it is, it learns when it runs: what Burn
/// needs of a node is compiled once for each number of inputs, not for each kernel.
#[derive(Debug)]
struct Node;

impl<const N: usize> Backward<Flex, N> for Node {
    type State = (Arc<dyn Kernel>, Vec<FlexTensor>, Vec<FlexTensor>);

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let upstream = contiguous(grads.consume::<Flex>(&ops.node));
        GIVEN.with_borrow_mut(|given| given.remove(&ops.node.id));
        let (kernel, inputs, saved) = ops.state;
        let mut slots = ops.parents.each_ref().map(|parent| match parent {
            None => Slot::unneeded(),
            Some(parent) => {
                // A gradient that came along another path is taken out, so that the kernel can add to it in
                // place. Leaves, which have no parents, keep theirs: taking one out would copy it.
                let inner = !parent.parents.is_empty();
                let held = inner && GIVEN.with_borrow_mut(|given| given.remove(&parent.id));
                Slot::needed(held.then(|| contiguous(grads.consume::<Flex>(parent))))
            }
        });
        kernel.backward(&inputs, &saved, upstream, &mut slots);
        for (parent, slot) in ops.parents.iter().zip(slots) {
            if let (Some(parent), Some(gradient)) = (parent, slot.into_gradient()) {
                if let Some((into, part)) = LEAVES.with_borrow(|leaves| leaves.get(&parent.id).cloned()) {
                    into.bring(part, gradient);
                    continue;
                }
                grads.register::<Flex>(parent.id, gradient);
                if !parent.parents.is_empty() {
                    GIVEN.with_borrow_mut(|given| given.insert(parent.id));
                }
            }
        }
    }
}

fn track<const N: usize>(kernel: Arc<dyn Kernel>, inputs: Vec<Tracked>) -> Tracked {
    let inputs: [Tracked; N] = inputs.try_into().unwrap_or_else(|_| unreachable!("the length was matched"));
    let nodes = inputs.each_ref().map(|input| input.node());
    let values: Vec<FlexTensor> = inputs.into_iter().map(|input| contiguous(input.into_primitive())).collect();
    match Node.prepare::<NoCheckpointing>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => {
            let (output, saved) = kernel.forward(&values, true);
            let kept = kernel.kept(values);
            prepared.finish((kernel, kept, saved), output)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(kernel.forward(&values, false).0),
    }
}

/// Applies a kernel. If one input is tracked, the result is.
pub(crate) fn run<const D: usize>(kernel: impl Kernel, inputs: Vec<Input>) -> Tensor<D> {
    apply(Arc::new(kernel), inputs)
}

fn apply<const D: usize>(kernel: Arc<dyn Kernel>, inputs: Vec<Input>) -> Tensor<D> {
    if inputs.iter().all(|input| matches!(input, Input::Plain(_))) {
        let values: Vec<FlexTensor> = inputs
            .into_iter()
            .map(|input| match input {
                Input::Plain(tensor) => contiguous(tensor),
                Input::Tracked(tracked) => contiguous(tracked.into_primitive()),
            })
            .collect();
        let (output, _) = kernel.forward(&values, false);
        return Tensor::from_primitive::<Flex>(output);
    }
    let tracked: Vec<Tracked> = inputs
        .into_iter()
        .map(|input| match input {
            Input::Tracked(tracked) => tracked,
            Input::Plain(tensor) => <Autodiff<Flex> as burn::backend::AutodiffBackend>::from_inner(tensor),
        })
        .collect();
    let output = match tracked.len() {
        1 => track::<1>(kernel, tracked),
        2 => track::<2>(kernel, tracked),
        3 => track::<3>(kernel, tracked),
        4 => track::<4>(kernel, tracked),
        5 => track::<5>(kernel, tracked),
        6 => track::<6>(kernel, tracked),
        7 => track::<7>(kernel, tracked),
        8 => track::<8>(kernel, tracked),
        9 => track::<9>(kernel, tracked),
        other => unreachable!("kernels take one to nine tensors, not {other}"),
    };
    Tensor::from_primitive::<Autodiff<Flex>>(output)
}
