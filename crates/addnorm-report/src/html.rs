//! The HTML page: one file, no network, light and dark.

use std::fmt::Write;
use std::io;
use std::path::Path;

use addnorm_nn::{Model, ModelConfig, StackKind};
use addnorm_probe::Verdict;
use addnorm_scheme::diagram::{diagram, escape};
use addnorm_scheme::prose::prose;
use addnorm_train::{Comparison, RunOutcome};
use pulldown_latex::{Parser, RenderConfig, Storage, config::DisplayMode, push_mathml};

use crate::payload::{Payload, RunPayload};
use crate::table::{columns, comparison_json, explanation, run_text, short};

const PAGE: &str = include_str!("../assets/report.html");
const STYLE: &str = include_str!("../assets/report.css");
const SCRIPT: &str = include_str!("../assets/report.js");
const UPLOT: &str = include_str!("../assets/uplot/uPlot.iife.min.js");
const UPLOT_STYLE: &str = include_str!("../assets/uplot/uPlot.min.css");

/// Writes `report.html` and `comparison.json` of a comparison, and `report.html` of every run in its folder.
///
/// # Errors
/// If a file cannot be written.
pub fn write_comparison(comparison: &Comparison, folder: &Path) -> io::Result<()> {
    std::fs::write(folder.join("comparison.json"), comparison_json(comparison))?;
    for outcome in &comparison.outcomes {
        write_run(outcome, &folder.join(&outcome.spec.label))?;
    }
    let seeds = comparison.rows.first().map_or(1, |row| row.seeds.len().max(1));
    let settings = &comparison.settings;
    let title = format!("{} schemes at {} blocks", comparison.rows.len(), depth_in_words(&settings.model));
    let subtitle = format!(
        "Width {}, {} heads, context {}, {} steps on {}.",
        settings.model.width,
        settings.model.heads,
        settings.model.context,
        settings.train.steps,
        comparison.corpus.description
    );
    let firsts: Vec<&RunOutcome> = comparison.outcomes.chunks(seeds).filter_map(<[RunOutcome]>::first).collect();
    let mut body = String::new();
    body.push_str(&comparison_table(comparison));
    body.push_str(&charts(&settings.model));
    body.push_str("<h2>The schemes</h2>\n");
    firsts.iter().enumerate().for_each(|(number, outcome)| body.push_str(&card(outcome, number)));
    body.push_str(&differences(comparison));
    body.push_str(&settings_section(&settings.to_toml()));
    let runs =
        comparison.outcomes.iter().enumerate().map(|(at, outcome)| RunPayload::new(outcome, at / seeds)).collect();
    let mut schemes = vec![String::new(); comparison.rows.len()];
    for row in &comparison.rows {
        schemes[row.order].clone_from(&row.label);
    }
    let payload = Payload {
        runs,
        schemes,
        unigram: comparison.corpus.unigram_entropy,
        floor: comparison.corpus.floor,
        blocks: last_place(&settings.model),
    };
    std::fs::write(folder.join("report.html"), page(&title, &subtitle, &body, &payload))
}

/// Writes `report.html` of one run.
///
/// # Errors
/// If the file cannot be written.
pub fn write_run(outcome: &RunOutcome, folder: &Path) -> io::Result<()> {
    let (meta, config) = (&outcome.meta, &outcome.spec.config);
    let title = format!("{} at {} blocks", meta.title, depth_in_words(&config.model));
    let subtitle = format!(
        "{} Seed {}, {} steps on {}.",
        sentence(&meta.judgement.words),
        meta.seed,
        config.train.steps,
        meta.corpus.description
    );
    let mut body = format!("<pre class=\"summary\">{}</pre>\n", escape(&run_text(outcome)));
    body.push_str(&charts(&config.model));
    body.push_str("<h2>The scheme</h2>\n");
    body.push_str(&card(outcome, 0));
    body.push_str(&settings_section(&config.to_toml()));
    let payload = Payload {
        runs: vec![RunPayload::new(outcome, 0)],
        schemes: vec![outcome.spec.label.clone()],
        unigram: meta.corpus.unigram_entropy,
        floor: meta.corpus.floor,
        blocks: last_place(&config.model),
    };
    std::fs::write(folder.join("report.html"), page(&title, &subtitle, &body, &payload))
}

/// How many blocks there are; of a pair on either side.
fn depth_in_words(model: &ModelConfig) -> String {
    match model.stack {
        StackKind::Pair => format!("{} + {}", model.blocks, model.blocks_of_decoder()),
        _ => model.blocks.to_string(),
    }
}

/// The number of the last place on an axis of blocks: the embedding is 0, and of a pair the decoder's embedding
/// follows the encoder's last block.
fn last_place(model: &ModelConfig) -> usize {
    match model.stack {
        StackKind::Pair => model.blocks + 1 + model.blocks_of_decoder(),
        _ => model.blocks,
    }
}

/// The charts, with what their axes mean.
fn charts(model: &ModelConfig) -> String {
    if model.stack != StackKind::Pair {
        return CHARTS.to_string();
    }
    let places = format!(
        "from the encoder's embedding (0) to its last block ({}), then from the decoder's embedding ({}) to its last block ({})",
        model.blocks,
        model.blocks + 1,
        last_place(model)
    );
    CHARTS.replace("from the embedding (0) to the last block", &places)
}

const CHARTS: &str = r#"<h2>Loss</h2>
<div class="controls" role="group" aria-label="Which loss"><label><input type="radio" name="loss" value="validation" checked> validation</label>
<label><input type="radio" name="loss" value="train"> training, every step</label></div>
<div id="loss" class="chart"></div>
<h2>Depth profiles</h2>
<p class="hint">Each line is a scheme, from the embedding (0) to the last block. Move the slider to see the layers before, during and after training.</p>
<div class="controls"><label for="step">after step <output id="step-value"></output></label> <input id="step" type="range" min="0" max="0" value="0" step="1"></div>
<div class="profiles">
<figure><figcaption>RMS of the residual stream</figcaption><div id="rms" class="chart small"></div></figure>
<figure><figcaption>Mean cosine between tokens</figcaption><div id="cosine" class="chart small"></div></figure>
<figure><figcaption>Norm of the stream's gradient</figcaption><div id="gradient" class="chart small"></div></figure>
<figure><figcaption>Norm of the block's parameter gradient</figcaption><div id="parameter_gradient" class="chart small"></div></figure>
<figure><figcaption>Share that the attention adds</figcaption><div id="attention_share" class="chart small"></div></figure>
<figure><figcaption>Share that the FFN adds</figcaption><div id="ffn_share" class="chart small"></div></figure>
</div>
<div id="legend" class="legend"></div>
"#;

fn page(title: &str, subtitle: &str, body: &str, payload: &Payload) -> String {
    // A closing tag inside the data would end the script early.
    let data = serde_json::to_string(payload).unwrap_or_default().replace("</", "<\\/");
    let fill = [
        ("{{title}}", escape(title)),
        ("{{subtitle}}", escape(subtitle)),
        ("{{style}}", format!("{UPLOT_STYLE}\n{STYLE}")),
        ("{{body}}", body.to_string()),
        ("{{data}}", data),
        ("{{uplot}}", UPLOT.to_string()),
        ("{{script}}", SCRIPT.to_string()),
    ];
    // One pass over the template, so that nothing that was filled in is taken for a place to fill.
    let mut page = String::new();
    let mut rest = PAGE;
    while let Some(start) = rest.find("{{") {
        page.push_str(&rest[..start]);
        rest = &rest[start..];
        match fill.iter().find(|(name, _)| rest.starts_with(name)) {
            Some((name, value)) => {
                page.push_str(value);
                rest = &rest[name.len()..];
            }
            None => {
                page.push_str("{{");
                rest = &rest[2..];
            }
        }
    }
    page.push_str(rest);
    page
}

fn comparison_table(comparison: &Comparison) -> String {
    let columns = columns(comparison);
    let mut html = String::from("<div class=\"scroll\"><table class=\"results\"><thead><tr>");
    for (name, _) in &columns {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape(name));
    }
    html.push_str("</tr></thead><tbody>\n");
    for row in &comparison.rows {
        let colour = row.order;
        let class = match row.verdict {
            Verdict::Trains => "good",
            Verdict::StaysAtUnigram | Verdict::AboveUnigram => "stuck",
            Verdict::Diverged => "broken",
        };
        let _ = write!(html, "<tr class=\"{class}\">");
        for (at, (_, value)) in columns.iter().enumerate() {
            let text = escape(&value(row));
            if at == 0 {
                let _ = write!(
                    html,
                    "<th scope=\"row\"><span class=\"dot\" data-scheme=\"{colour}\"></span><a href=\"#scheme-{colour}\">{text}</a></th>"
                );
            } else if at + 1 == columns.len() {
                let _ = write!(html, "<td class=\"verdict\">{text}</td>");
            } else {
                let _ = write!(html, "<td>{text}</td>");
            }
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    for line in explanation(comparison).lines() {
        let _ = writeln!(html, "<p class=\"hint\">{}</p>", escape(&sentence(line)));
    }
    html
}

/// A scheme's equations, diagram and initialisers.
fn card(outcome: &RunOutcome, number: usize) -> String {
    let anchor = format!("scheme-{number}");
    let scheme = &outcome.spec.scheme;
    // The run was made with this model, so it can be made again.
    let Ok(model) = Model::new(scheme, &outcome.spec.config.model) else {
        return String::new();
    };
    let plan = model.plan();
    let words = prose(plan);
    let mut html = format!("<section class=\"card\" id=\"{anchor}\"><h3>{}", escape(&scheme.title));
    for paper in &scheme.papers {
        let link = paper.strip_prefix("arXiv:").map(|number| format!("https://arxiv.org/abs/{number}"));
        let _ = match link {
            Some(link) => write!(html, " <a class=\"paper\" href=\"{}\">{}</a>", escape(&link), escape(paper)),
            None => write!(html, " <span class=\"paper\">{}</span>", escape(paper)),
        };
    }
    html.push_str("</h3>\n");
    for note in &scheme.notes {
        let _ = writeln!(html, "<p>{}</p>", escape(note));
    }
    html.push_str("<div class=\"columns\"><div class=\"equations\">\n");
    for equation in &words.embed {
        let _ = writeln!(html, "<p class=\"where\">embedding</p>{}", mathml(&equation.latex, &equation.text));
    }
    for blocks in &words.blocks {
        let range = match (blocks.first, blocks.last) {
            (first, last) if first == last => format!("block {first}"),
            (first, last) => format!("blocks {first} to {last}"),
        };
        let _ = writeln!(html, "<p class=\"where\">{range}</p>");
        for equation in &blocks.equations {
            html.push_str(&mathml(&equation.latex, &equation.text));
        }
    }
    let head = words.head.latex.replace(r"\text{head: } ", "");
    let _ = writeln!(html, "<p class=\"where\">head</p>{}", mathml(&head, &words.head.text));
    let constants = &plan.blocks[plan.blocks.len() - 1].constants;
    if !constants.is_empty() {
        let list: Vec<String> = constants
            .iter()
            .map(|(name, value)| format!("{name} = {}", value.number().map_or_else(|| "by step".into(), short)))
            .collect();
        let _ = writeln!(html, "<p class=\"where\">in the last block</p><p>{}</p>", escape(&list.join(", ")));
    }
    html.push_str("<table class=\"plain\"><caption>Initial weights</caption>\n");
    for row in &outcome.meta.initialisers {
        let (matrices, words) = (escape(&row.matrices.join(" ")), escape(&row.words()));
        let _ = writeln!(html, "<tr><th scope=\"row\">{matrices}</th><td>{words}</td></tr>");
    }
    let _ = writeln!(html, "</table></div><div class=\"diagrams\">");
    for blocks in &words.blocks {
        let title = if words.blocks.len() == 1 {
            format!("{}: a block", scheme.title)
        } else {
            format!("{}: block {}", scheme.title, blocks.first)
        };
        let svg = diagram(&plan.blocks[blocks.first - 1], &plan.streams, &title);
        let _ = writeln!(html, "<figure>{svg}<figcaption>{}</figcaption></figure>", escape(&title));
    }
    html.push_str("</div></div></section>\n");
    html
}

/// LaTeX as MathML, which browsers draw without a script; the plain text where that fails.
fn mathml(latex: &str, text: &str) -> String {
    let storage = Storage::new();
    let parser = Parser::new(latex, &storage);
    let config = RenderConfig { display_mode: DisplayMode::Block, annotation: Some(text), ..RenderConfig::default() };
    let mut html = String::new();
    match push_mathml(&mut html, parser, config) {
        Ok(()) if !html.contains("merror") => html + "\n",
        _ => format!("<pre>{}</pre>\n", escape(text)),
    }
}

fn differences(comparison: &Comparison) -> String {
    let mut html = String::from("<h2>What differs besides the scheme's equations</h2>\n");
    if comparison.differences.is_empty() {
        html.push_str("<p>Nothing: data, order, seeds, optimiser and every other setting are the same for all.</p>\n");
        return html;
    }
    html.push_str("<p>Data, order, seeds, optimiser and every other setting are the same for all. These come with a scheme:</p>\n<div class=\"scroll\"><table class=\"plain\"><thead><tr><th scope=\"col\"></th>");
    for (label, _) in &comparison.differences[0].values {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape(label));
    }
    html.push_str("</tr></thead><tbody>\n");
    for difference in &comparison.differences {
        let _ = write!(html, "<tr><th scope=\"row\">{}</th>", escape(&difference.setting));
        for (_, value) in &difference.values {
            let _ = write!(html, "<td>{}</td>", escape(value));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    html
}

fn settings_section(toml: &str) -> String {
    format!("<details><summary>All settings</summary><pre>{}</pre></details>\n", escape(toml))
}

fn sentence(words: &str) -> String {
    let mut chars = words.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let sentence = first + chars.as_str();
    if sentence.ends_with('.') { sentence } else { sentence + "." }
}
