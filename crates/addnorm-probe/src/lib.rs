//! What happens in each layer, and what it means.
//!
//! [`measure`] runs one batch forward and backward and records, block by block, whether signal and
//! gradient survive. [`find_first_non_finite`] says where a run broke. [`judge`] puts a run's end into words.

mod layers;
mod number;
mod trouble;
mod verdict;

pub use layers::{LayerStatistics, StreamStatistics, measure};
pub use number::Number;
pub use trouble::{Trouble, find_first_non_finite, first_non_finite_gradient};
pub use verdict::{Ending, Judgement, Verdict, gradient_ratio, judge};
