//! Fused operators of a Transformer with their own backward passes, on Burn.
//!
//! Every operator here has two bodies: a tuned one for Burn's CPU backend (flex), forward and backward
//! written out, for `f32` and `f64`; and a composed one out of Burn's own operators, which serves every
//! other device and, in the tests, as the oracle of the first. Which one runs is decided by where the
//! tensor lives, never by a flag.
//!
//! Invariants:
//! - Statistics are `f64` whatever the storage type, and so are long sums: what joins them are numbers, or sums of
//!   at most some hundreds that were made by halves.
//! - Work is parted into chunks of fixed size and partial results are added in order, so the number of
//!   threads never changes a result.
//! - Loops are compiled for several instruction sets and chosen between at run time; `unsafe` stands only in
//!   `gemm` (the call of the matrix product) and `buffer` (memory lent to Burn).
//! - A buffer that a tensor gives up is used again: a step that repeats the one before takes no fresh memory.
//! - A NaN that goes in comes out: no clamp or maximum hides it.

pub mod activation;
pub mod attention;
mod attention_part;
pub mod bench;
mod buffer;
pub mod collect;
pub mod dropout;
mod element;
pub mod embedding;
mod flex;
mod gemm;
pub mod learned_sum;
pub mod linear;
pub mod loss;
mod mix;
pub mod norm;
mod norm_rows;
pub mod optimizer;
pub mod parallel;
pub mod rotary;
mod simd;
mod slot;
pub mod sparse_attention;
pub mod statistics;
pub mod tap;

pub use activation::{Activation, activation, gated_activation};
pub use attention::{AttentionSettings, HeadNorm, attention};
pub use buffer::{fresh_bytes, release_idle};
pub use collect::{GradientSum, LeafCollector, backward, collect_leaf, collects, resume};
pub use dropout::dropout;
pub use embedding::embedding;
pub use gemm::{Product, product_operations, record_products, repeat_products};
pub use learned_sum::learned_sum;
pub use linear::{activated_linear, linear};
pub use loss::{MOST_LOGITS, head_loss};
pub use mix::weighted_sum;
pub use norm::{Norm, add_norm, norm};
pub use optimizer::{AdamwParameter, AdamwStep, adamw, sum_of_squares, total_of_squares};
pub use parallel::{alone, threads};
pub use rotary::rotary;
pub use sparse_attention::{SoftmaxWork, sparse_attention, take_softmax_work};
pub use tap::{GradientTap, records_gradients, tap};
