//! `addnorm translate`

use std::fmt::Write;
use std::process::ExitCode;

use addnorm_data::{BleuTokens, Dataset, bleu};
use addnorm_nn::{StackKind, device};
use addnorm_train::{Marks, Search, bleu_tokens, load_run, sample, task_of, translate as write};

use crate::args::TranslateArguments;
use crate::failure::Failure;
use crate::printer;

/// Translations that are shown beside their score.
const SHOWN: usize = 5;

pub fn translate(arguments: &TranslateArguments) -> Result<ExitCode, Failure> {
    if !(1..=64).contains(&arguments.beam) {
        return Err(Failure::input(format!("a beam keeps 1 to 64 outputs, not {}", arguments.beam)));
    }
    if !arguments.length_penalty.is_finite() {
        return Err(Failure::input("the length penalty is a number"));
    }
    let device = device(&arguments.device).map_err(Failure::input)?;
    let run = load_run(&arguments.run, &device)
        .map_err(|error| Failure::input(error).hint("a finished run of a pair is wanted"))?;
    if run.config.model.stack != StackKind::Pair {
        let message =
            format!("the run's model is of the kind '{}', and a pair translates", run.config.model.stack.name());
        return Err(Failure::input(message).hint("train one with '--stack pair'"));
    }
    let vocabulary = run.vocabulary.as_ref().ok_or_else(|| Failure::input("the run has no vocabulary"))?;
    let step = run.config.train.steps;
    let search = Search { beam: arguments.beam, length_penalty: arguments.length_penalty, step };
    let marks = Marks::of(vocabulary);
    let translated = |sources: &[Vec<u32>]| -> Vec<String> {
        let outputs = write(&run.model, &run.weights, sources, marks, search);
        outputs.iter().map(|tokens| vocabulary.decode(tokens)).collect()
    };
    if !arguments.texts.is_empty() {
        let sources = arguments.texts.iter().map(|text| vocabulary.encode(text)).collect::<Result<Vec<_>, _>>();
        let sources = sources.map_err(Failure::input)?;
        if let Some(at) = sources.iter().position(Vec::is_empty) {
            return Err(Failure::input(format!("text {} is empty", at + 1)));
        }
        let most = run.config.model.context - 1;
        for (at, source) in sources.iter().enumerate().filter(|(_, source)| source.len() > most) {
            printer::message(&format!(
                "warning: text {} has {} tokens, of which the model reads the first {most}",
                at + 1,
                source.len()
            ));
        }
        let outputs = translated(&sources);
        if arguments.json {
            let both = arguments.texts.iter().zip(&outputs);
            let rows: Vec<_> =
                both.map(|(source, output)| serde_json::json!({ "source": source, "output": output })).collect();
            printer::result(&serde_json::to_string_pretty(&rows).map_err(Failure::run)?);
        } else {
            printer::result(&outputs.join("\n"));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let config = &run.config;
    let dataset =
        Dataset::load(task_of(config.model.stack), &config.data, config.model.context, config.train.eval_tokens)?;
    let Dataset::SecondText(pairs) = &dataset else {
        return Err(Failure::input("the run's data is no pairs"));
    };
    if pairs.cut > 0 {
        printer::message(&format!("note: {} texts were cut to the context, references among them", pairs.cut));
    }
    let sample = sample(pairs, arguments.pairs);
    let sources: Vec<Vec<u32>> = sample.iter().map(|pair| pair.source.clone()).collect();
    let outputs = translated(&sources);
    let references: Vec<String> = sample.iter().map(|pair| vocabulary.decode(&pair.target)).collect();
    let tokens = bleu_tokens(&references);
    let score = bleu(outputs.iter().map(String::as_str).zip(references.iter().map(String::as_str)), tokens);
    if arguments.json {
        let rows: Vec<_> = (0..sample.len())
            .map(|at| {
                let source = vocabulary.decode(&sources[at]);
                serde_json::json!({ "source": source, "output": outputs[at], "reference": references[at] })
            })
            .collect();
        let report = serde_json::json!({
            "bleu": score, "words": tokens, "beam": arguments.beam, "length_penalty": arguments.length_penalty,
            "pairs": rows,
        });
        printer::result(&serde_json::to_string_pretty(&report).map_err(Failure::run)?);
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    for at in 0..sample.len().min(SHOWN) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "source     {}", vocabulary.decode(&sources[at]));
        let _ = writeln!(text, "output     {}", outputs[at]);
        let _ = writeln!(text, "reference  {}\n", references[at]);
    }
    let [one, two, three, four] = score.precisions;
    let unit = if tokens == BleuTokens::Char { "characters" } else { "words" };
    let _ = write!(
        text,
        "BLEU {:.2} over {} validation pairs, beam {} ({one:.1}/{two:.1}/{three:.1}/{four:.1}, brevity {:.3}, {} {unit} \
         for {})",
        score.score,
        sample.len(),
        arguments.beam,
        score.brevity_penalty,
        score.output_length,
        score.reference_length,
    );
    printer::result(&text);
    Ok(ExitCode::SUCCESS)
}
