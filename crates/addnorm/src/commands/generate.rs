//! `addnorm generate`

use std::process::ExitCode;

use addnorm_nn::{ForwardOptions, NoObserver, Purpose, StackKind, Tokens, device, draw, statistics, stream};
use addnorm_train::load_run;

use crate::args::GenerateArguments;
use crate::failure::Failure;
use crate::printer;

pub fn generate(arguments: &GenerateArguments) -> Result<ExitCode, Failure> {
    if !(arguments.temperature.is_finite() && arguments.temperature >= 0.0) {
        return Err(Failure::input(format!("a temperature is a number from 0 on, not {}", arguments.temperature)));
    }
    let device = device(&arguments.device).map_err(Failure::input)?;
    let run = load_run(&arguments.run, &device)
        .map_err(|error| Failure::input(error).hint("a finished run of 'addnorm train' or 'compare' is wanted"))?;
    if run.config.model.stack != StackKind::Decoder {
        let message = format!("a model of the kind '{}' goes on with no text", run.config.model.stack.name());
        return Err(Failure::input(message).hint("'addnorm translate' writes with a pair"));
    }
    let vocabulary = run.vocabulary.as_ref().ok_or_else(|| Failure::input("the run has no vocabulary"))?;
    let mut tokens = vocabulary.encode(&arguments.prompt).map_err(Failure::input)?;
    if tokens.is_empty() {
        return Err(Failure::input("the prompt is empty").hint("give at least one token to go on from"));
    }
    let context = run.model.config().context;
    let prompt_length = tokens.len();
    let mut random = stream(arguments.seed, Purpose::Evaluation, "generate");
    let options = ForwardOptions { step: run.config.train.steps, ..ForwardOptions::default() };
    for _ in 0..arguments.tokens {
        let window = &tokens[tokens.len().saturating_sub(context)..];
        let input = Tokens { numbers: window.into(), shape: [1, window.len()] };
        let logits = run.model.logits(&run.weights, &input, options, &mut NoObserver);
        let values = statistics::to_f64(&logits);
        let row = &values[values.len() - run.model.config().vocabulary..];
        tokens.push(draw(row, arguments.temperature, &mut random));
    }
    let text = vocabulary.decode(&tokens);
    if arguments.json {
        let report = serde_json::json!({
            "prompt": arguments.prompt, "text": text, "prompt_tokens": prompt_length, "tokens": tokens,
            "temperature": arguments.temperature, "seed": arguments.seed,
        });
        printer::result(&report.to_string());
    } else {
        printer::result(&text);
    }
    Ok(ExitCode::SUCCESS)
}
