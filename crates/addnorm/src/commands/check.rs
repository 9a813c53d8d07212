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
        Err(error) => return Err(error.into()),
    };
    // Constants and bodies can be wrong at some depths only.
    let mut problems = Vec::new();
    for blocks in [1, 2, 3, 12, 1000] {
        let dimensions = Dimensions { blocks, width: 64, heads: 4, stack: Stack::Decoder };
        if let Err(error) = scheme.plan(dimensions) {
            problems.push(format!("at {blocks} blocks: {}", error.message));
        }
    }
    if arguments.json {
        let report = serde_json::json!({
            "scheme": scheme.name, "ok": problems.is_empty(), "problems": problems, "lints": scheme.lints,
        });
        printer::result(&report.to_string());
    } else {
        for lint in &scheme.lints {
            let place = lint.line.map(|line| format!("line {line}: ")).unwrap_or_default();
            printer::message(&format!("warning: {place}{} [{}]", lint.message, lint.code));
        }
        if let Some(problem) = problems.first() {
            return Err(Failure::input(format!("{}: {problem}", scheme.name)));
        }
        let warnings = match scheme.lints.len() {
            0 => String::new(),
            1 => ", with 1 warning".to_string(),
            count => format!(", with {count} warnings"),
        };
        printer::result(&format!("{}: right{warnings}", scheme.name));
    }
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) })
}
