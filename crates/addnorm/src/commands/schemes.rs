//! `addnorm schemes`

use std::process::ExitCode;

use addnorm_scheme::{library, lookup};
use serde::Serialize;

use crate::args::SchemesArguments;
use crate::failure::Failure;
use crate::printer;

#[derive(Serialize)]
struct Entry {
    name: String,
    title: String,
    papers: Vec<String>,
    notes: Vec<String>,
}

pub fn schemes(arguments: &SchemesArguments) -> Result<ExitCode, Failure> {
    let entries = library()
        .map(|(name, _)| {
            let scheme = lookup(name)?;
            Ok(Entry { name: scheme.name, title: scheme.title, papers: scheme.papers, notes: scheme.notes })
        })
        .collect::<Result<Vec<_>, Failure>>()?;
    if arguments.json {
        printer::result(&serde_json::to_string_pretty(&entries).map_err(Failure::run)?);
    } else {
        let rows = entries.iter().map(|entry| vec![entry.name.clone(), entry.title.clone(), entry.papers.join(", ")]);
        printer::result(&addnorm_report::plain_table(&["scheme", "title", "paper"], rows.collect()));
    }
    Ok(ExitCode::SUCCESS)
}
