//! The loss with its gradients: parts of a batch side by side, and segments of the model one after another.
//!
//! A batch is parted among the threads by its sequences. Each thread runs its part through the whole model
//! with kernels that use no other thread, and the gradients of the parts are summed parameter by parameter.
//! With recomputation the model is parted too, by its blocks: of each segment only the streams that enter it
//! are kept, and the backward pass begins by running the segment once more.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use addnorm_kernels::{
    GradientSum, GradientTap, LeafCollector, alone, backward, collect_leaf, collects, resume, statistics, tap, threads,
};
use burn::tensor::{Gradients, Tensor};
use rayon::prelude::*;

use crate::forward::{ForwardOptions, Parameters, Pass};
use crate::inputs::Inputs;
use crate::model::{GradientError, LossAndGradients, Model};
use crate::observer::{NoObserver, Observer};
use crate::weights::{Weight, Weights};

/// Leaves of the graph of one segment, made when first asked for.
pub(crate) struct Leaves<'a> {
    weights: &'a Weights,
    found: &'a Found,
    part: usize,
    /// By parameter: the leaf, and what sends its gradient on.
    made: RefCell<BTreeMap<usize, (Weight, Option<LeafCollector>)>>,
}

impl<'a> Leaves<'a> {
    fn new(weights: &'a Weights, found: &'a Found, part: usize) -> Self {
        Leaves { weights, found, part, made: RefCell::default() }
    }

    pub(crate) fn get(&self, index: usize) -> Weight {
        let make = || {
            let leaf = self.weights.0[index].tracked();
            let collector = match &leaf {
                Weight::Vector(leaf) => self.found.collect(index, leaf, self.part),
                Weight::Matrix(leaf) => self.found.collect(index, leaf, self.part),
            };
            (leaf, collector)
        };
        self.made.borrow_mut().entry(index).or_insert_with(make).0.clone()
    }

    /// Takes what the backward pass left at the leaves: of Burn's own operators, and on other devices of all.
    fn gather(self, gradients: &mut Gradients) {
        for (index, (leaf, collector)) in self.made.into_inner() {
            let sum = collector.is_some().then(|| &self.found.sums[index]);
            let found = match (leaf, sum) {
                (Weight::Vector(leaf), None) => leaf.grad_remove(gradients).map(Weight::Vector),
                (Weight::Matrix(leaf), None) => leaf.grad_remove(gradients).map(Weight::Matrix),
                (Weight::Vector(leaf), Some(sum)) => {
                    leaf.grad_remove(gradients).into_iter().for_each(|found| sum.add(self.part, found));
                    None
                }
                (Weight::Matrix(leaf), Some(sum)) => {
                    leaf.grad_remove(gradients).into_iter().for_each(|found| sum.add(self.part, found));
                    None
                }
            };
            if let Some(found) = found {
                let mut others = self.found.others.lock().unwrap_or_else(PoisonError::into_inner);
                others[index] = Some(match others[index].take() {
                    Some(sum) => sum.plus(found),
                    None => found,
                });
            }
        }
    }
}

/// The gradients as they are found.
pub(crate) struct Found {
    sums: Vec<Arc<GradientSum>>,
    /// Where the device brings none by itself.
    others: Mutex<Vec<Option<Weight>>>,
}

impl Found {
    fn new(parameters: usize, parts: usize) -> Self {
        let sums = (0..parameters).map(|_| Arc::new(GradientSum::new(parts))).collect();
        Found { sums, others: Mutex::new(vec![None; parameters]) }
    }

    fn collect<const D: usize>(&self, index: usize, leaf: &Tensor<D>, part: usize) -> Option<LeafCollector> {
        collects(leaf).then(|| collect_leaf(leaf, &self.sums[index], part))
    }

    fn take(&self, model: &Model, weights: &Weights) -> Result<Vec<Weight>, GradientError> {
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let take = |(index, weight): (usize, &Weight)| {
            let brought = match weight {
                Weight::Vector(_) => self.sums[index].take().map(Weight::Vector),
                Weight::Matrix(_) => self.sums[index].take().map(Weight::Matrix),
            };
            let missing = || GradientError { name: model.parameters()[index].name.clone() };
            brought.or_else(|| others[index].take()).ok_or_else(missing)
        };
        weights.0.iter().enumerate().map(take).collect()
    }
}

/// Sequences `from..to` of a batch.
#[derive(Clone)]
pub(crate) struct Part {
    pub inputs: Inputs,
    pub targets: Arc<[u32]>,
    /// Sequences before the first.
    pub first: usize,
}

/// Parts a batch evenly; no part is empty.
pub(crate) fn part(inputs: &Inputs, targets: &Arc<[u32]>, parts: usize) -> Vec<Part> {
    let (batch, each) = (inputs.batch(), inputs.targets());
    if parts < 2 {
        return vec![Part { inputs: inputs.clone(), targets: Arc::clone(targets), first: 0 }];
    }
    assert_eq!(targets.len(), batch * each, "one target a position");
    let bound = |part: usize| part * batch / parts;
    (0..parts)
        .map(|part| {
            let (from, to) = (bound(part), bound(part + 1));
            Part { inputs: inputs.part(from, to), targets: targets[from * each..to * each].into(), first: from }
        })
        .collect()
}

/// Runs `work` on each part, side by side. With a part for every thread each stays on its own.
pub(crate) fn side_by_side<R: Send>(parts: Vec<Part>, work: impl Fn(usize, Part) -> R + Sync) -> Vec<R> {
    let busy = parts.len() >= threads();
    parts
        .into_par_iter()
        .enumerate()
        .with_max_len(1)
        .map(|(number, part)| if busy { alone(|| work(number, part)) } else { work(number, part) })
        .collect()
}

/// How many parts a batch is worked on in.
pub(crate) fn parts_of(inputs: &Inputs, weights: &Weights) -> usize {
    let on_cpu = weights.0.first().is_some_and(|weight| match weight {
        Weight::Vector(tensor) => collects(tensor),
        Weight::Matrix(tensor) => collects(tensor),
    });
    if on_cpu { threads().min(inputs.batch()).max(1) } else { 1 }
}

impl Model {
    /// Loss and gradients; the gradients are those of `scale` times the sum of the losses, so that parts of
    /// a batch add up to the batch whatever their sizes.
    ///
    /// On the CPU the sequences are parted among the threads of the current pool, unless an observer looks:
    /// the number of threads decides the order of sums, and so the last bits.
    ///
    /// # Errors
    /// If a parameter gets no gradient.
    ///
    /// # Panics
    /// As [`losses`](Model::losses).
    pub fn loss_and_gradients(
        &self,
        weights: &Weights,
        inputs: impl Into<Inputs>,
        targets: Arc<[u32]>,
        scale: f64,
        options: ForwardOptions,
        observer: &mut dyn Observer,
    ) -> Result<LossAndGradients, GradientError> {
        let inputs = inputs.into();
        let count = if observer.looks() { 1 } else { parts_of(&inputs, weights) };
        let found = Found::new(weights.0.len(), count);
        let segments = self.segments(options.recompute);
        let work = Work { model: self, weights, found: &found, segments, scale, options };
        let mut parts = part(&inputs, &targets, count);
        let total = if count == 1 {
            work.run(0, parts.swap_remove(0), observer)
        } else {
            side_by_side(parts, |number, part| work.run(number, part, &mut NoObserver)).iter().sum()
        };
        Ok(LossAndGradients { total, gradients: found.take(self, weights)? })
    }

    /// The sections of each segment of the last stack; a pair is one segment. Section 0 is the embedding and the last one the head. `every` is the
    /// number of blocks in a segment; 0 makes one segment of all.
    fn segments(&self, every: usize) -> Vec<Range<usize>> {
        let blocks = self.plan().blocks.len();
        let every = if every == 0 || self.plans.len() > 1 { blocks } else { every };
        (0..blocks)
            .step_by(every)
            .map(|start| {
                let end = (start + every).min(blocks);
                (if start == 0 { 0 } else { start + 1 })..(if end == blocks { blocks + 2 } else { end + 1 })
            })
            .collect()
    }
}

/// What all parts of a batch share.
struct Work<'a> {
    model: &'a Model,
    weights: &'a Weights,
    found: &'a Found,
    segments: Vec<Range<usize>>,
    scale: f64,
    options: ForwardOptions,
}

impl Work<'_> {
    /// Runs one part forward and backward. The result is the sum of its losses.
    fn run(&self, number: usize, part: Part, observer: &mut dyn Observer) -> f64 {
        let first_sequence = self.options.first_sequence + part.first;
        let options = ForwardOptions { first_sequence, ..self.options };
        // What enters each segment but the first, and how many masks were drawn before.
        let mut entries: Vec<(Vec<Tensor<3>>, u64)> = Vec::new();
        for segment in &self.segments[..self.segments.len() - 1] {
            let (streams, masks) = entries.last().cloned().unwrap_or_default();
            let mut unseen = NoObserver;
            let mut pass = Pass::new(self.model, Parameters::Plain(self.weights), options, &mut unseen, masks);
            let streams = if segment.start == 0 { pass.embed(&part.inputs) } else { streams };
            let streams = pass.sections(segment.clone(), streams);
            entries.push((streams, pass.masks()));
        }
        let mut total = f64::NAN;
        // By stream: the gradient that the segment after found; none where nothing reads the stream.
        let mut later: Vec<Option<Tensor<3>>> = Vec::new();
        for (at, segment) in self.segments.iter().enumerate().rev() {
            let leaves = Leaves::new(self.weights, self.found, number);
            let (entering, masks) = if at == 0 { Default::default() } else { entries.pop().unwrap_or_default() };
            let entering: Vec<Entering> = entering.into_iter().map(Entering::new).collect();
            let mut pass = Pass::new(self.model, Parameters::Tracked(&leaves), options, observer, masks);
            let mut streams = if self.segments.len() == 1 {
                vec![pass.whole(&part.inputs)]
            } else if segment.start == 0 {
                let streams = pass.embed(&part.inputs);
                pass.sections(segment.clone(), streams)
            } else {
                let streams = entering.iter().map(|stream| stream.read.clone()).collect();
                pass.sections(segment.clone(), streams)
            };
            let root = if at + 1 == self.segments.len() {
                let losses = pass.losses(streams.swap_remove(0), &part.targets);
                total = statistics::to_f64(&losses).iter().sum();
                Some(losses.sum() * self.scale)
            } else {
                let pairs = streams.into_iter().zip(std::mem::take(&mut later));
                let pairs: Vec<_> = pairs.filter_map(|(stream, gradient)| Some((stream, gradient?))).collect();
                (!pairs.is_empty()).then(|| resume(pairs))
            };
            let Some(root) = root else { break };
            let mut gradients = backward(root);
            later = entering.into_iter().map(|stream| stream.gradient(&mut gradients)).collect();
            leaves.gather(&mut gradients);
        }
        total
    }
}

/// A stream that enters a segment.
struct Entering {
    leaf: Tensor<3>,
    read: Tensor<3>,
    gradient: GradientTap,
}

impl Entering {
    fn new(stream: Tensor<3>) -> Self {
        let gradient = GradientTap::new();
        let leaf = stream.autodiff().require_grad();
        // An inner node: kernels add to its gradient in place, as they do in the whole graph.
        let read = tap(leaf.clone(), &gradient);
        Entering { leaf, read, gradient }
    }

    fn gradient(self, gradients: &mut Gradients) -> Option<Tensor<3>> {
        self.gradient.take().or_else(|| self.leaf.grad_remove(gradients))
    }
}
