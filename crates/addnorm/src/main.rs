//! The command line of addnorm.

mod args;
mod commands;
mod failure;
mod printer;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Arguments, Command};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Command::Schemes(arguments) => commands::schemes::schemes(&arguments),
        Command::Models(arguments) => commands::models::models(&arguments),
        Command::Show(arguments) => commands::show::show(&arguments),
        Command::Check(arguments) => commands::check::check(&arguments),
        Command::Compare(arguments) => commands::compare::compare(&arguments),
        Command::Train(arguments) => commands::train::train(&arguments),
        Command::Generate(arguments) => commands::generate::generate(&arguments),
        Command::Sparse(arguments) => commands::sparse::sparse(&arguments),
        Command::Convert(arguments) => commands::convert::convert(&arguments),
        Command::Translate(arguments) => commands::translate::translate(&arguments),
        Command::Bench(arguments) => commands::bench::bench(&arguments),
    };
    match result {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
