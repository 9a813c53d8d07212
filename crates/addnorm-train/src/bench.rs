//! The work of a training step and of an evaluation, without a run around it: to be timed.

use std::sync::Arc;

use addnorm_nn::{
    DType, ForwardOptions, Model, NoObserver, Product, Tokens, Weights, alone, device, record_products, repeat_products,
};
use rayon::prelude::*;

use crate::optimizer::{AdamW, clip_factor, global_norm};
use crate::run::{RunError, RunSpec};

/// A model in training on one batch that never changes.
pub struct Workload {
    model: Model,
    weights: Weights,
    optimizer: AdamW,
    tokens: Tokens,
    targets: Arc<[u32]>,
    spec: RunSpec,
}

impl Workload {
    /// A fresh model with a batch of its context.
    ///
    /// # Errors
    /// If the model or the device cannot be made.
    pub fn new(spec: &RunSpec) -> Result<Self, RunError> {
        let (config, train) = (&spec.config.model, &spec.config.train);
        let device = device(&train.device)?;
        let model = Model::new(&spec.scheme, config)?;
        let weights = model.initialise(train.seed, &device, DType::F32);
        let optimizer = AdamW::of_run(model.parameters(), train, &device);
        let count = train.batch * config.context;
        let number = |at: usize, factor: usize| (at * factor % config.vocabulary) as u32;
        let tokens =
            Tokens { numbers: (0..count).map(|at| number(at, 7919)).collect(), shape: [train.batch, config.context] };
        let targets = (0..count).map(|at| number(at, 104_729)).collect();
        Ok(Self { model, weights, optimizer, tokens, targets, spec: spec.clone() })
    }

    /// Trainable numbers.
    pub fn parameters(&self) -> usize {
        self.model.parameter_count()
    }

    /// Tokens of one step.
    pub fn tokens(&self) -> usize {
        self.tokens.numbers.len()
    }

    /// One training step: forward, backward, clipping by the global norm, AdamW. What comes back is the mean loss.
    ///
    /// # Errors
    /// If a parameter would never learn.
    pub fn train(&mut self) -> Result<f64, RunError> {
        let train = &self.spec.config.train;
        let count = self.tokens.numbers.len() as f64;
        let options =
            ForwardOptions { dropout_seed: Some(1), recompute: train.recompute.blocks(), ..ForwardOptions::default() };
        let targets = Arc::clone(&self.targets);
        let found = self
            .model
            .loss_and_gradients(&self.weights, &self.tokens, targets, 1.0 / count, options, &mut NoObserver)
            .map_err(|error| RunError::Gradient { scheme: self.spec.label.clone(), error })?;
        let norm = global_norm(&found.gradients);
        let clip_factor = clip_factor(norm, train.clip);
        self.optimizer.step(&mut self.weights, found.gradients, train.learning_rate, clip_factor);
        Ok(found.total / count)
    }

    /// One evaluation: the mean loss, without a gradient.
    pub fn evaluate(&self) -> f64 {
        let targets = Arc::clone(&self.targets);
        let total = self.model.total_loss(&self.weights, &self.tokens, targets, ForwardOptions::default());
        total / self.tokens.numbers.len() as f64
    }

    /// The matrix products of one training step, by thread.
    ///
    /// # Errors
    /// If a parameter would never learn.
    pub fn products(&mut self) -> Result<Products, RunError> {
        let (result, products) = record_products(|| self.train());
        result.map(|_| Products(products))
    }
}

/// Matrix products to be made again by themselves.
pub struct Products(Vec<Vec<Product>>);

impl Products {
    /// Makes them all, each thread its own.
    pub fn repeat(&self) {
        let busy = self.0.len() >= rayon::current_num_threads();
        self.0
            .par_iter()
            .with_max_len(1)
            .for_each(|products| if busy { alone(|| repeat_products(products)) } else { repeat_products(products) });
    }
}
