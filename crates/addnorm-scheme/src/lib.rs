//! The scheme language of addnorm.
//!
//! A scheme says where the norms of a Transformer stand, how its residual streams are wired and scaled,
//! and how its matrices start. It is a short text that reads like the paper:
//!
//! ```
//! use addnorm_scheme::{Dimensions, Scheme, Stack};
//!
//! let scheme = Scheme::parse("scaled-skip", "
//! let alpha = (2*L)^(1/4)
//! each f:
//!     x = norm(alpha*x + f(x))
//! head: x
//! ").unwrap();
//! let plan = scheme.plan(Dimensions { blocks: 12, width: 64, heads: 4, stack: Stack::Decoder }).unwrap();
//! let (name, alpha) = &plan.blocks[0].constants[0];
//! assert_eq!(name, "alpha");
//! assert!((alpha.number().unwrap() - 2.2134).abs() < 1e-4);
//! ```
//!
//! Everything that is done with a scheme is an [`Algebra`] over its [`Plan`]. This crate brings the ones
//! that need no tensors: [`prose`] and [`cost`].

mod algebra;
mod check;
pub mod cost;
pub mod diagram;
mod error;
mod init;
mod lexer;
mod library;
mod lints;
mod parser;
mod plan;
mod planner;
pub mod prose;
mod scalar;
mod scheme;
mod syntax;

pub use algebra::{Algebra, interpret, interpret_section};
pub use error::{Lint, SchemeError, Span, nearest};
pub use init::{DistributionKind, InitRow, InitRule, InitTable, Initializer, MatrixKind};
pub use lexer::MAX_SOURCE_BYTES;
pub use library::{LookupError, library, lookup};
pub use plan::*;
pub use scalar::{Scalar, ScalarFunction};
pub use scheme::*;
pub use syntax::Operator;

impl Scheme {
    /// Reads and checks a scheme's text. `name` is what reports call it.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place and what would be right.
    pub fn parse(name: &str, source: &str) -> Result<Self, SchemeError> {
        let mut scheme = check::check(name, source)?;
        scheme.lints.extend(lints::lints(&scheme));
        Ok(scheme)
    }
}
