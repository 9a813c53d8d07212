//! What people see of a run or a comparison: tables for the terminal, JSON for machines, and one HTML page
//! that opens offline.

mod html;
mod payload;
mod table;

pub use html::{write_comparison, write_run};
pub use table::{comparison_json, comparison_text, plain_table, run_text};
