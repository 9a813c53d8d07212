//! `addnorm check`

use std::process::ExitCode;

use addnorm_scheme::{Dimensions, Stack, lookup};

use crate::args::CheckArguments;
use crate::failure::Failure;
use crate::printer;

pub fn check(arguments: &CheckArguments) -> Result<ExitCode, Failure> {
    let scheme = match lookup(&arguments.scheme) {
        Ok(scheme) => scheme,
        Err(addnorm_scheme::LookupError::Wrong { name, error, .. }) if arguments.json => {
            let report = serde_json::json!({
                "scheme": name, "ok": false, "message": error.message, "hint": error.hint,
                "line": error.line, "column": error.column, "text": error.text,
            });
            printer::result(&report.to_string());
            return Ok(ExitCode::from(2));
        }
        Err(error) => {
            let failure = Failure::from(error);
            if arguments.json {
                printer::result(&failure.json().to_string());
                return Ok(ExitCode::from(2));
            }
            return Err(failure);
        }
    };
    // Constants and bodies can be wrong at some depths only: that is a warning, at all depths an error.
    let mut problems = Vec::new();
    const DEPTHS: [usize; 5] = [1, 2, 3, 12, 100];
    for blocks in DEPTHS {
        let dimensions = Dimensions { blocks, width: 64, heads: 4, stack: Stack::Decoder };
        if let Err(error) = scheme.plan(dimensions) {
            let plural = if blocks == 1 { "" } else { "s" };
            problems.push(format!("at {blocks} block{plural}: {}", error.message));
        }
    }
    let works = problems.len() < DEPTHS.len();
    if arguments.json {
        let report = serde_json::json!({
            "scheme": scheme.name, "ok": works, "problems": problems, "lints": scheme.lints,
        });
        printer::result(&report.to_string());
    } else {
        printer::lints(&scheme);
        for problem in problems.iter().filter(|_| works) {
            printer::message(&format!("warning: {problem}"));
        }
        if let (false, Some(problem)) = (works, problems.last()) {
            return Err(Failure::input(format!("{}: {problem}", scheme.name)));
        }
        let warnings = match scheme.lints.len() + problems.len() {
            0 => String::new(),
            1 => ", with 1 warning".to_string(),
            count => format!(", with {count} warnings"),
        };
        printer::result(&format!("{}: ok{warnings}", scheme.name));
    }
    Ok(if works { ExitCode::SUCCESS } else { ExitCode::from(2) })
}
