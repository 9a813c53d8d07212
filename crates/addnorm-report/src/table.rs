//! Tables for the terminal, and the same numbers as JSON.

use addnorm_nn::StackKind;
use addnorm_probe::{Number, gradient_ratio};
use addnorm_train::{Comparison, ComparisonRow, MetricLine, RunOutcome};
use comfy_table::{CellAlignment, Table, presets};

/// A table without lines, columns parted by two spaces.
pub fn plain_table(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    finish(&table)
}

fn finish(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_string() + "\n").collect()
}

/// A number with as many digits as it is worth.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        _ if value.is_nan() => "NaN".into(),
        size if size.is_infinite() => {
            if value > 0.0 {
                "inf".into()
            } else {
                "-inf".into()
            }
        }
        0.0 => "0".into(),
        size if !(1e-3..1e5).contains(&size) => format!("{value:.1e}"),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A column: its name, and what it shows of a row.
pub(crate) type Column = (&'static str, fn(&ComparisonRow) -> String);

/// The columns of the comparison, by their names and a row's values.
pub(crate) fn columns(comparison: &Comparison) -> Vec<Column> {
    fn loss(row: &ComparisonRow) -> String {
        if row.diverged > 0 {
            // No mean over runs of which some have none; what each came to is in the JSON.
            return "diverged".into();
        }
        match row.spread {
            Some(spread) => format!("{:.4} ± {:.4}", row.mean_loss.0, spread.0),
            None => format!("{:.4}", row.mean_loss.0),
        }
    }
    /// What is worked out from the mean loss; nothing where there is none.
    fn of_finite(row: &ComparisonRow, value: Option<Number>) -> String {
        value.filter(|_| row.diverged == 0).map_or_else(|| "-".into(), |value| format!("{:.3}", value.0))
    }
    let mut columns: Vec<Column> = vec![("scheme", |row| row.label.clone()), ("validation loss", loss)];
    if comparison.corpus.floor.is_some() {
        columns.push(("above floor", |row| of_finite(row, row.above_floor)));
    } else {
        columns.push(("below unigram", |row| of_finite(row, Some(row.below_unigram))));
    }
    if comparison.corpus.bytes_per_token.is_some() {
        columns.push(("bits/byte", |row| of_finite(row, row.bits_per_byte)));
    }
    /// What the task is judged by besides its loss.
    fn measured(row: &ComparisonRow, name: &str, digits: usize, scale: f64) -> String {
        let found = row.measures.iter().find(|measure| measure.name == name);
        found.map_or_else(|| "-".into(), |measure| format!("{:.digits$}", measure.value.0 * scale))
    }
    let measures = |name: &str| comparison.rows.iter().any(|row| row.measures.iter().any(|found| found.name == name));
    if measures("accuracy") {
        columns.push(("accuracy %", |row| measured(row, "accuracy", 2, 100.0)));
    }
    if measures("BLEU") {
        columns.push(("BLEU", |row| measured(row, "BLEU", 2, 1.0)));
    }
    columns.push(("grad 1/L", |row| short(row.gradient_ratio.0)));
    columns.push(("RMS L", |row| short(row.residual_rms.0)));
    columns.push(("cosine L", |row| format!("{:.2}", row.token_cosine.0)));
    columns.push(("tokens/s", |row| format!("{:.0}", row.tokens_per_second)));
    columns.push(("verdict", |row| row.words.clone()));
    columns
}

/// The comparison as a table, with what its columns mean.
pub fn comparison_text(comparison: &Comparison) -> String {
    let columns = columns(comparison);
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(columns.iter().map(|(name, _)| *name));
    for row in &comparison.rows {
        table.add_row(columns.iter().map(|(_, value)| value(row)).collect::<Vec<_>>());
    }
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if at > 0 && at + 1 < columns.len() {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = finish(&table);
    for (label, reason) in &comparison.failures {
        text.push_str(&format!("{label} could not be run: {reason}\n"));
    }
    text.push('\n');
    text.push_str(&explanation(comparison));
    text
}

/// What the numbers mean, and how they were made.
pub(crate) fn explanation(comparison: &Comparison) -> String {
    let (corpus, settings) = (&comparison.corpus, &comparison.settings);
    let floor = match corpus.floor {
        Some(floor) => format!(", floor {floor:.3} (no model can be below)"),
        None => String::new(),
    };
    let seeds = comparison.rows.first().map_or(0, |row| row.seeds.len());
    let spread = match seeds {
        0 | 1 => "one seed, so differences have no spread to be held against; '--seeds 3' gives one".to_string(),
        count => format!("mean ± sample standard deviation over {count} seeds"),
    };
    let differing: Vec<&str> = comparison.differences.iter().map(|difference| difference.setting.as_str()).collect();
    let differing = if differing.is_empty() {
        "nothing differs besides the equations".to_string()
    } else {
        format!("what differs besides the equations (values in the report): {}", differing.join(", "))
    };
    // Of an encoder the hidden tokens alone are targets, and counted as used.
    let things = if settings.model.stack == StackKind::Vision { "images" } else { "tokens" };
    let dropped = comparison.outcomes.first().map_or(0, |outcome| outcome.meta.dropped_tokens);
    format!(
        "losses in nats {}; unigram entropy {:.3}{floor}; {spread}\n\
         at the end of training: grad 1/L, stream gradient after {}; RMS L and cosine L, residual stream after the last \
         block\n\
         {differing}\n\
         {} training {things}, of which {dropped} at the end fill no window; {} of {} validation {things} used\n\
         {} steps of {} x {} {}, learning rate {:e}, warm-up {}; {} with epsilon {:e}; {} at a time on {} threads each; {:.0} s in all\n",
        if settings.model.stack == StackKind::Vision { "an image" } else { "a token" },
        corpus.unigram_entropy,
        match settings.model.stack {
            StackKind::Pair => {
                let last = settings.model.blocks_of_decoder();
                format!("the encoder's block 1 over that after the decoder's block {last}")
            }
            _ => format!("block 1 over that after block {}", settings.model.blocks),
        },
        corpus.training_tokens,
        validation_used(comparison),
        corpus.validation_tokens,
        settings.train.steps,
        settings.train.batch,
        if settings.model.stack == StackKind::Vision { settings.model.patches() } else { settings.model.context },
        if settings.model.stack == StackKind::Vision { "patches" } else { "tokens" },
        settings.train.learning_rate,
        settings.train.warmup,
        settings.model.norm.name(),
        settings.model.epsilon,
        comparison.jobs.0,
        comparison.jobs.1,
        comparison.seconds,
    )
}

/// Validation tokens that each loss is the mean of.
fn validation_used(comparison: &Comparison) -> u64 {
    let metrics = comparison.outcomes.first().map(|outcome| outcome.metrics.as_slice()).unwrap_or_default();
    let used = metrics.iter().find_map(|line| match line {
        MetricLine::Validation { tokens, .. } => Some(*tokens),
        MetricLine::Train { .. } => None,
    });
    used.unwrap_or(0)
}

/// The comparison as JSON. Numbers that are not finite are the texts `NaN`, `inf` and `-inf`.
pub fn comparison_json(comparison: &Comparison) -> String {
    let report = serde_json::json!({
        "rows": comparison.rows,
        "failures": comparison.failures,
        "differences": comparison.differences,
        "settings": comparison.settings,
        "corpus": comparison.corpus,
        "jobs": comparison.jobs.0,
        "threads_per_job": comparison.jobs.1,
        "seconds": comparison.seconds,
        "runs": comparison.outcomes.iter().map(|outcome| &outcome.meta).collect::<Vec<_>>(),
    });
    serde_json::to_string_pretty(&report).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
}

/// One run in a few lines.
pub fn run_text(outcome: &RunOutcome) -> String {
    let (meta, corpus) = (&outcome.meta, &outcome.meta.corpus);
    let mut rows = vec![
        vec!["scheme".to_string(), format!("{} ({})", meta.title, meta.scheme)],
        vec!["verdict".into(), meta.judgement.words.clone()],
        vec![
            "validation loss".into(),
            format!("{:.4} nats, from {:.4} before training", meta.validation_loss.0, meta.initial_validation_loss.0),
        ],
    ];
    if let Some(floor) = corpus.floor {
        rows.push(vec!["above floor".into(), format!("{:.4} (floor {floor:.4})", meta.validation_loss.0 - floor)]);
    }
    if let Some(bytes) = corpus.bytes_per_token {
        let bits = meta.validation_loss.0 / std::f64::consts::LN_2 / bytes;
        rows.push(vec!["bits per byte".into(), format!("{bits:.4}")]);
    }
    for measure in &meta.measures {
        let words = match measure.name.as_str() {
            "accuracy" => format!("{:.2} % of the validation targets used", 100.0 * measure.value.0),
            "BLEU" => format!("{:.2}, greedy, on a sample of the validation pairs", measure.value.0),
            _ => short(measure.value.0),
        };
        rows.push(vec![measure.name.clone(), words]);
    }
    rows.push(vec!["unigram entropy".into(), format!("{:.4}", corpus.unigram_entropy)]);
    let start = outcome.layers_by_step().first().copied().unwrap_or(&[]);
    let (first, last) = (short(gradient_ratio(start)), short(gradient_ratio(outcome.last_layers())));
    rows.push(vec!["gradient, block 1 over last".into(), format!("{last}, from {first} before training")]);
    if let Some(last) = outcome.last_layers().last() {
        rows.push(vec!["RMS of the last block".into(), short(last.streams[0].rms.0)]);
        rows.push(vec!["token cosine, last block".into(), format!("{:.3}", last.token_cosine.0)]);
    }
    rows.push(vec!["parameters".into(), meta.parameters.to_string()]);
    rows.push(vec![
        "weight decay on".into(),
        format!("{} of {} tensors (matrices; no gain, bias or scalar)", meta.decayed, meta.tensors),
    ]);
    rows.push(vec!["norms".into(), meta.norm.clone()]);
    rows.push(vec!["tokens".into(), format!("{}, {:.0} a second", meta.tokens, meta.tokens_per_second)]);
    if meta.dropped_tokens > 0 {
        rows.push(vec!["unused at the end".into(), format!("{} tokens that fill no window", meta.dropped_tokens)]);
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    finish(&table)
}
