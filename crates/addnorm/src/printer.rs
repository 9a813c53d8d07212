//! What goes to the terminal: progress on stderr, results on stdout.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::Duration;

use addnorm_scheme::Scheme;
use addnorm_train::Progress;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Whether messages may have colours.
pub fn colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && std::io::stderr().is_terminal()
}

/// Writes a result to stdout. A reader that has gone away is no failure.
pub fn result(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ =
        out.write_all(text.as_bytes()).and_then(|()| if text.ends_with('\n') { Ok(()) } else { out.write_all(b"\n") });
}

/// Writes a message to stderr.
pub fn message(text: &str) {
    eprintln!("{text}");
}

/// What is suspicious in the one scheme that a command is about, with its lines.
pub fn lints(scheme: &Scheme) {
    for lint in &scheme.lints {
        let place = lint.line.map(|line| format!("line {line}: ")).unwrap_or_default();
        message(&format!("warning: {place}{} [{}]", lint.message, lint.code));
    }
}

/// The same of a scheme that is one of several or not in the user's view, with its name.
pub fn warnings_of(scheme: &Scheme) {
    for lint in &scheme.lints {
        message(&format!("warning: {}: {} [{}]", scheme.name, lint.message, lint.code));
    }
}

/// Bars in a terminal, plain lines elsewhere.
pub struct Bars {
    all: MultiProgress,
    overall: ProgressBar,
    runs: Vec<Mutex<Option<ProgressBar>>>,
    labels: Vec<Mutex<String>>,
    terminal: bool,
}

impl Bars {
    /// For so many runs of so many steps.
    pub fn new(runs: usize, steps: u64) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let all = MultiProgress::with_draw_target(target);
        let overall = all.add(ProgressBar::new(runs as u64 * steps));
        overall.set_style(style("{bar:30} {percent:>3}%  {elapsed} elapsed, {eta} left  {msg}"));
        if terminal {
            overall.enable_steady_tick(Duration::from_millis(500));
        }
        Self {
            all,
            overall,
            runs: (0..runs).map(|_| Mutex::new(None)).collect(),
            labels: (0..runs).map(|_| Mutex::new(String::new())).collect(),
            terminal,
        }
    }

    fn with_bar(&self, run: usize, act: impl FnOnce(&mut Option<ProgressBar>)) {
        if let Ok(mut bar) = self.runs[run].lock() {
            act(&mut bar);
        }
    }

    fn label(&self, run: usize) -> String {
        self.labels[run].lock().map(|label| label.clone()).unwrap_or_default()
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl Progress for Bars {
    fn started(&self, run: usize, label: &str, steps: u64) {
        if let Ok(mut own) = self.labels[run].lock() {
            *own = label.to_string();
        }
        self.with_bar(run, |slot| {
            let bar = self.all.add(ProgressBar::new(steps));
            bar.set_style(style("  {prefix:<18} {bar:24} {pos:>5}/{len}  {msg}"));
            bar.set_prefix(label.to_string());
            *slot = Some(bar);
        });
    }

    fn stepped(&self, run: usize, step: u64, loss: f64) {
        self.overall.inc(1);
        let label = self.label(run);
        self.with_bar(run, |slot| {
            if let Some(bar) = slot {
                bar.set_position(step);
                bar.set_message(format!("loss {loss:.4}"));
                // Where nothing can be redrawn, a line at each quarter.
                let steps = bar.length().unwrap_or(0);
                if !self.terminal && steps >= 40 && step.is_multiple_of(steps / 4) && step < steps {
                    message(&format!("  {label:<18} step {step} of {steps}, loss {loss:.4}"));
                }
            }
        });
    }

    fn finished(&self, run: usize, words: &str) {
        let label = self.label(run);
        self.with_bar(run, |slot| {
            if let Some(bar) = slot.take() {
                // A run that stopped early gives its remaining steps back to the overall count.
                self.overall.inc(bar.length().unwrap_or(0).saturating_sub(bar.position()));
                bar.finish_and_clear();
            }
        });
        let line = format!("  {label:<18} {words}");
        if self.terminal {
            let _ = self.all.println(line);
        } else {
            message(&line);
        }
        if self.overall.position() >= self.overall.length().unwrap_or(u64::MAX) {
            self.overall.finish_and_clear();
        }
    }
}
