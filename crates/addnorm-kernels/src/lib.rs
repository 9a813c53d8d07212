//! Fused operators of a Transformer with their own backward passes, on Burn.
//!
//! Every operator here has two bodies: a tuned one for Burn's CPU backend (flex), forward and backward
//! written out, for `f32` and `f64`; and a composed one out of Burn's own operators, which serves every
//! other device and, in the tests, as the oracle of the first. Which one runs is decided by where the
//! tensor lives, never by a flag.
//!
//! Invariants:
//! - Statistics and long sums are `f64` whatever the storage type.
//! - Work is parted into chunks of fixed size and partial results are added in order, so the number of
//!   threads never changes a result.
//! - A NaN that goes in comes out: no clamp or maximum hides it.

pub mod activation;
pub mod attention;
pub mod dropout;
mod element;
pub mod embedding;
mod flex;
mod gemm;
pub mod linear;
pub mod loss;
pub mod mix;
pub mod norm;
pub mod optimizer;
pub mod rotary;
pub mod statistics;
pub mod tap;

pub use activation::{Activation, activation, gated_activation};
pub use attention::attention;
pub use dropout::dropout;
pub use embedding::embedding;
pub use linear::linear;
pub use loss::cross_entropy;
pub use mix::weighted_sum;
pub use norm::{Norm, norm};
pub use optimizer::{AdamwStep, adamw, sum_of_squares};
pub use rotary::rotary;
pub use tap::{GradientTap, records_gradients, tap};
