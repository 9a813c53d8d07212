//! How a command fails: one clear message with a hint, and an exit code.

use std::fmt;
use std::process::ExitCode;

use addnorm_data::DataError;
use addnorm_scheme::{LookupError, SchemeError};
use addnorm_train::{RunError, TrainConfigError};
use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, SourceCode};

/// A message for the user. Exit code 2 says that the input was wrong, 1 that the work failed.
#[derive(Debug)]
pub struct Failure {
    message: String,
    hint: Option<String>,
    source: Option<Box<(NamedSource<String>, LabeledSpan)>>,
    code: u8,
}

impl Failure {
    /// The input is wrong.
    pub fn input(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), hint: None, source: None, code: 2 }
    }

    /// The work failed.
    pub fn run(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), hint: None, source: None, code: 1 }
    }

    /// With advice.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    fn scheme(name: &str, text: String, error: &SchemeError) -> Self {
        let length = error.span.end.saturating_sub(error.span.start).max(1);
        let label = LabeledSpan::at(error.span.start..error.span.start + length, "here");
        Self {
            message: error.message.clone(),
            hint: error.hint.clone(),
            source: Some(Box::new((NamedSource::new(name, text), label))),
            code: 2,
        }
    }

    /// The message as JSON, for commands that were asked for it.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({ "ok": false, "message": self.message, "hint": self.hint })
    }

    /// Prints it to stderr and gives the exit code.
    pub fn report(self) -> ExitCode {
        let code = ExitCode::from(self.code);
        let theme =
            if crate::printer::colours() { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
        let mut text = String::new();
        if GraphicalReportHandler::new_themed(theme).with_width(100).render_report(&mut text, &self).is_err() {
            text = self.message.clone();
        }
        eprintln!("{}", text.trim_end());
        code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl Diagnostic for Failure {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.hint.as_ref().map(|hint| Box::new(hint) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.source.as_ref().map(|source| &source.0 as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let source = self.source.as_ref()?;
        Some(Box::new(std::iter::once(source.1.clone())))
    }
}

impl From<LookupError> for Failure {
    fn from(error: LookupError) -> Self {
        match error {
            LookupError::Wrong { name, source_text, error } => Failure::scheme(&name, source_text, &error),
            LookupError::Unknown { ref hint, .. } | LookupError::Constant { ref hint, .. } => {
                let hint = hint.clone();
                Failure::input(error).hint(hint)
            }
            other => Failure::input(other),
        }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        let failure = Failure::input(&error);
        match error.hint() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

impl From<TrainConfigError> for Failure {
    fn from(error: TrainConfigError) -> Self {
        let failure = Failure::input(&error);
        match error.hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

impl From<addnorm_nn::ConfigError> for Failure {
    fn from(error: addnorm_nn::ConfigError) -> Self {
        Failure::input(error)
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Model(_) | RunError::Config(_) | RunError::Device(_) => Failure::input(error),
            other => Failure::run(other),
        }
    }
}
