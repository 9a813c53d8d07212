//! Training one scheme, and many side by side.
//!
//! A [`RunConfig`] says everything that a run depends on; its folder holds it again, resolved, with the
//! scheme's text and every number that was measured. [`run`] trains, [`compare()`] trains many on equal terms.

mod batch;
pub mod bench;
mod compare;
mod config;
mod decode;
mod folder;
mod optimizer;
mod run;
mod schedule;

pub use addnorm_data::Marks;
pub use batch::{Batch, task_of};
pub use compare::{Comparison, ComparisonRow, DefaultComparison, Difference, Progress, compare, default_comparison};
pub use config::{CONFIG_SECTIONS, Recompute, RunConfig, TrainConfig, TrainConfigError};
pub use decode::{Search, bleu_tokens, sample, translate, translation_score};
pub use folder::{FolderError, LoadedRun, Measure, MetricLine, RunFolder, RunMeta, load_run, write_converted};
pub use optimizer::{AdamW, global_norm};
pub use run::{Evaluation, RunError, RunOutcome, RunSpec, check_gradients, evaluate, run};
pub use schedule::{Decay, Schedule};
