//! The bridge between a kernel on slices and Burn's tensors and autodiff.

use std::fmt::Debug;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex, TensorMetadata};
use burn::tensor::{Tensor, TensorData};

use crate::element::Element;

type Tracked = FloatTensor<Autodiff<Flex>>;

/// A differentiable operator on contiguous CPU tensors, all of one number type.
pub(crate) trait Kernel: Clone + Debug + Send + 'static {
    /// Whether the backward pass reads the inputs; if not, they are not kept alive.
    const KEEPS_INPUTS: bool = true;

    /// The output, and what the backward pass needs besides the inputs.
    fn forward(&self, inputs: &[FlexTensor]) -> (FlexTensor, Vec<FlexTensor>);

    /// The gradient of each input for which `needed` holds.
    fn backward(
        &self,
        inputs: &[FlexTensor],
        saved: &[FlexTensor],
        upstream: FlexTensor,
        needed: &[bool],
    ) -> Vec<Option<FlexTensor>>;
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

/// A tensor that takes over the vector.
pub(crate) fn tensor<E: Element>(data: Vec<E>, shape: &[usize]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(data, shape.to_vec()))
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

/// The node of a kernel in the graph of the backward pass.
#[derive(Debug)]
struct Node<K>(std::marker::PhantomData<fn() -> K>);

impl<K: Kernel, const N: usize> Backward<Flex, N> for Node<K> {
    type State = (K, Vec<FlexTensor>, Vec<FlexTensor>);

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let upstream = contiguous(grads.consume::<Flex>(&ops.node));
        let (kernel, inputs, saved) = ops.state;
        let needed: Vec<bool> = ops.parents.iter().map(Option::is_some).collect();
        let gradients = kernel.backward(&inputs, &saved, upstream, &needed);
        for (parent, gradient) in ops.parents.iter().zip(gradients) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                grads.register::<Flex>(parent.id, gradient);
            }
        }
    }
}

fn track<K: Kernel, const N: usize>(kernel: K, inputs: [Tracked; N]) -> Tracked {
    let nodes = inputs.each_ref().map(|input| input.node());
    let values: Vec<FlexTensor> = inputs.into_iter().map(|input| contiguous(input.into_primitive())).collect();
    let (output, saved) = kernel.forward(&values);
    let node = Node::<K>(std::marker::PhantomData);
    match node.prepare::<NoCheckpointing>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => {
            let kept = if K::KEEPS_INPUTS { values } else { Vec::new() };
            prepared.finish((kernel, kept, saved), output)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    }
}

/// Applies a kernel. If one input is tracked, the result is.
pub(crate) fn run<K: Kernel, const D: usize>(kernel: K, inputs: Vec<Input>) -> Tensor<D> {
    if inputs.iter().all(|input| matches!(input, Input::Plain(_))) {
        let values: Vec<FlexTensor> = inputs
            .into_iter()
            .map(|input| match input {
                Input::Plain(tensor) => contiguous(tensor),
                Input::Tracked(tracked) => contiguous(tracked.into_primitive()),
            })
            .collect();
        let (output, _) = kernel.forward(&values);
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
        1 => track(kernel, take::<1>(tracked)),
        2 => track(kernel, take::<2>(tracked)),
        3 => track(kernel, take::<3>(tracked)),
        4 => track(kernel, take::<4>(tracked)),
        other => unreachable!("kernels take one to four tensors, not {other}"),
    };
    Tensor::from_primitive::<Autodiff<Flex>>(output)
}

fn take<const N: usize>(tracked: Vec<Tracked>) -> [Tracked; N] {
    tracked.try_into().unwrap_or_else(|_| unreachable!("the length was matched"))
}
