//! Transformers out of schemes: the Tensors algebra, the sublayers, initialisation and weights.
//!
//! A [`Model`] is a plan with sizes: it knows every parameter by name, but holds none. [`Weights`] hold
//! them. The same model runs on tracked weights for training and on plain ones for everything else.
//!
//! This crate does not know what a run is.

mod config;
mod convert;
mod device;
mod forward;
mod gradient;
mod inputs;
mod layout;
mod logits;
mod measured;
mod model;
mod observer;
mod preset;
mod random;
mod sparse_norm;
mod weights;

pub use config::{ActivationKind, ConfigError, ModelConfig, Positions, QkNorm, StackKind};
pub use convert::ConvertError;
pub use device::{DeviceError, device};
pub use forward::ForwardOptions;
pub use inputs::{IGNORED, Inputs, Tokens};
pub use layout::{InitialValue, ParameterInfo, Role};
pub use logits::{likeliest, log_total};
pub use model::{GradientError, InitialiserRow, LossAndGradients, Model, ModelError};
pub use observer::{NoObserver, Observer};
pub use preset::{Preset, UnknownPreset, preset, preset_names};
pub use random::{Purpose, draw, stream, stream_seed};
pub use sparse_norm::{NormWork, take_norm_work};
pub use weights::{Weight, Weights, WeightsError};

pub use addnorm_kernels::{
    AdamwParameter, AdamwStep, GradientTap, MOST_LOGITS, Product, SoftmaxWork, adamw, alone, bench, fresh_bytes,
    product_operations, record_products, records_gradients, release_idle, repeat_products, statistics, sum_of_squares,
    take_softmax_work, tap, total_of_squares,
};
pub use burn::tensor::{DType, Device, Tensor};
