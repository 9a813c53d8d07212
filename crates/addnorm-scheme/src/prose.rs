//! The algebra of words: a scheme's equations as plain text and as LaTeX.

use std::convert::Infallible;

use crate::algebra::{Algebra, interpret_section};
use crate::plan::{Coefficient, Mix, Place, Plan, Section};
use crate::scalar::Scalar;
use crate::scheme::Sublayer;
use crate::syntax::Operator;

/// One equation, written twice.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Equation {
    /// As in a scheme file.
    pub text: String,
    /// In LaTeX.
    pub latex: String,
}

/// The equations of consecutive blocks that share them.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct BlockEquations {
    /// The first block.
    pub first: usize,
    /// The last block.
    pub last: usize,
    /// The equations in order.
    pub equations: Vec<Equation>,
}

/// A scheme in words.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Prose {
    /// What is done with the embedding.
    pub embed: Vec<Equation>,
    /// The blocks.
    pub blocks: Vec<BlockEquations>,
    /// What the head reads.
    pub head: Equation,
}

/// Writes the plan's equations.
pub fn prose(plan: &Plan) -> Prose {
    let write = |section: &Section| {
        let mut writer = Writer { equations: Vec::new(), section };
        let mut streams: Vec<Words> = match section.place {
            // Every stream starts as the embedding.
            Place::Embed => plan.streams.iter().map(|_| Words::atom("e", "e")).collect(),
            _ => plan.streams.iter().map(|name| Words::atom(name, &name_in_latex(name))).collect(),
        };
        for (name, &entries) in plan.histories.iter().zip(&section.entries) {
            streams.extend((0..entries).map(|entry| Words {
                entry: Some((name.clone(), entry)),
                ..Words::atom(&format!("{name}[{entry}]"), &format!("{}_{{{entry}}}", name_in_latex(name)))
            }));
        }
        let results = match interpret_section(section, &mut writer, streams) {
            Ok(results) => results,
            Err(never) => match never {},
        };
        (writer.equations, results)
    };
    let mut blocks: Vec<BlockEquations> = Vec::new();
    for section in &plan.blocks {
        let Place::Block(block) = section.place else { continue };
        let (equations, _) = write(section);
        match blocks.last_mut() {
            Some(last) if last.equations == equations => last.last = block,
            _ => blocks.push(BlockEquations { first: block, last: block, equations }),
        }
    }
    let (_, head) = write(&plan.head);
    Prose {
        embed: write(&plan.embed).0,
        blocks,
        head: Equation {
            text: format!("head: {}", head[0].text),
            latex: format!(r"\text{{head: }} {}", head[0].latex),
        },
    }
}

#[derive(Debug, Clone)]
struct Words {
    text: String,
    latex: String,
    /// A name or a call, which needs no parentheses.
    atomic: bool,
    /// The entry of a history that it is.
    entry: Option<(String, usize)>,
}

impl Words {
    fn atom(text: &str, latex: &str) -> Self {
        Words { text: text.to_string(), latex: latex.to_string(), atomic: true, entry: None }
    }

    fn grouped(&self) -> (String, String) {
        if self.atomic {
            (self.text.clone(), self.latex.clone())
        } else {
            (format!("({})", self.text), format!(r"\left({}\right)", self.latex))
        }
    }
}

struct Writer<'a> {
    equations: Vec<Equation>,
    section: &'a Section,
}

/// `, name=value` for what is set.
fn settings<'a>(given: impl IntoIterator<Item = (&'a str, Option<&'a Scalar>)>) -> (String, String) {
    let (mut text, mut latex) = (String::new(), String::new());
    for (name, value) in given {
        if let Some(value) = value {
            text.push_str(&format!(", {name}={}", scalar_as_text(value)));
            latex.push_str(&format!(r";\,\mathrm{{{name}}}={}", scalar_in_latex(value)));
        }
    }
    (text, latex)
}

/// `coefficient * value` without its sign: text and LaTeX.
fn scaled(coefficient: &Scalar, value: &Words) -> (String, String) {
    let (text, latex) = value.grouped();
    match coefficient {
        one if one.is_one() => (text, latex),
        Scalar::Binary(Operator::Divide, top, bottom) => {
            let divisor = format!("/{}", wrap(bottom, Operator::Power));
            if top.is_one() {
                (format!("{text}{divisor}"), format!(r"\frac{{{latex}}}{{{}}}", scalar_in_latex(bottom)))
            } else {
                let (top_text, top_latex) = (wrap(top, Operator::Multiply), scalar_in_latex(top));
                let fraction = format!(r"\frac{{{top_latex}}}{{{}}}", scalar_in_latex(bottom));
                (format!("{top_text}*{text}{divisor}"), format!(r"{fraction}\,{latex}"))
            }
        }
        other => {
            let in_latex = scalar_in_latex(other);
            let needs = matches!(other, Scalar::Binary(Operator::Add | Operator::Subtract, ..));
            let in_latex = if needs { format!(r"\left({in_latex}\right)") } else { in_latex };
            (format!("{}*{text}", wrap(other, Operator::Multiply)), format!(r"{in_latex}\,{latex}"))
        }
    }
}

/// The magnitude of a coefficient and whether it is taken away.
fn unsigned(coefficient: &Scalar) -> (Scalar, bool) {
    match coefficient {
        Scalar::Negative(inner) => ((**inner).clone(), true),
        Scalar::Number(number) if *number < 0.0 => (Scalar::Number(-number), true),
        Scalar::Binary(operator @ (Operator::Multiply | Operator::Divide), left, right) => {
            let (left, negative) = unsigned(left);
            (Scalar::Binary(*operator, Box::new(left), right.clone()), negative)
        }
        other => (other.clone(), false),
    }
}

impl Algebra for Writer<'_> {
    type Value = Words;
    type Error = Infallible;

    fn mix(&mut self, _: Place, mix: &Mix, inputs: &[Words]) -> Result<Words, Infallible> {
        let (mut text, mut latex) = (String::new(), String::new());
        for (at, (term, input)) in mix.terms.iter().zip(inputs).enumerate() {
            let input = &match &input.entry {
                // All entries of a history stand as one sum.
                Some((history, 0)) => {
                    let (factor_text, factor_latex) = match &term.coefficient.symbol {
                        one if one.is_one() => (String::new(), String::new()),
                        factor => (
                            format!("{}*", wrap(factor, Operator::Multiply)),
                            format!(r"{}_k\,", scalar_in_latex(factor)),
                        ),
                    };
                    Words::atom(
                        &format!("sum({factor_text}{history})"),
                        &format!(r"\sum_k {factor_latex}{}_k", name_in_latex(history)),
                    )
                }
                Some(_) => continue,
                None => input.clone(),
            };
            let whole = Coefficient::one();
            let coefficient =
                if mix.terms.len() > at && inputs[at].entry.is_some() { &whole } else { &term.coefficient };
            let input = if term.stopped {
                let inner = input.text.clone();
                Words::atom(&format!("stop({inner})"), &format!(r"\operatorname{{stop}}\left({}\right)", input.latex))
            } else {
                input.clone()
            };
            let (magnitude, negative) = unsigned(&coefficient.symbol);
            // A sum inside a sum needs parentheses only where it is scaled or taken away.
            let (term_text, term_latex) = if magnitude.is_one() && !negative {
                (input.text.clone(), input.latex.clone())
            } else {
                scaled(&magnitude, &input)
            };
            let sign = match (at, negative) {
                (0, false) => "",
                (0, true) => "-",
                (_, false) => " + ",
                (_, true) => " - ",
            };
            text.push_str(sign);
            text.push_str(&term_text);
            latex.push_str(sign);
            latex.push_str(&term_latex);
        }
        let atomic = mix.terms.len() == 1 && mix.terms[0].coefficient.symbol.is_one();
        let mut words = Words { text, latex, atomic, entry: None };
        if let Some(name) = &mix.norm {
            let symbols = self.section.norm_numbers.get(name).map(|numbers| &numbers.symbols);
            let (set_text, set_latex) = settings([
                ("eps", symbols.and_then(|symbols| symbols.epsilon.as_ref())),
                ("gain", symbols.and_then(|symbols| symbols.gain.as_ref())),
            ]);
            let (text, latex) = (&words.text, &words.latex);
            words = Words::atom(
                &format!("norm({text}{set_text})"),
                &format!(r"\operatorname{{norm}}\left({latex}{set_latex}\right)"),
            );
        }
        if !mix.scale.symbol.is_one() {
            let (text, latex) = scaled(&mix.scale.symbol, &words);
            words = Words { text, latex, atomic: false, entry: None };
        }
        Ok(words)
    }

    fn apply(&mut self, _: Place, sublayer: Sublayer, input: Words) -> Result<Words, Infallible> {
        let name = sublayer.name();
        let latex = format!(r"\operatorname{{{name}}}\left({}\right)", input.latex);
        Ok(Words::atom(&format!("{name}({})", input.text), &latex))
    }

    fn gate(&mut self, _: Place, name: &str, input: Words) -> Result<Words, Infallible> {
        let bias = self.section.gates().find(|(known, _)| *known == name).map(|(_, bias)| &bias.symbol);
        let (text, latex) = settings([("bias", bias.filter(|bias| **bias != Scalar::Number(0.0)))]);
        Ok(Words::atom(
            &format!("gate({}{text})", input.text),
            &format!(r"\operatorname{{gate}}\left({}{latex}\right)", input.latex),
        ))
    }

    fn multiply(&mut self, _: Place, gate: Words, value: Words) -> Result<Words, Infallible> {
        let ((gate_text, gate_latex), (text, latex)) = (gate.grouped(), value.grouped());
        let product = format!(r"{gate_latex} \odot {latex}");
        // Binds as tightly as whatever it is scaled by.
        Ok(Words { text: format!("{gate_text}*{text}"), latex: product, atomic: true, entry: None })
    }

    fn assign(&mut self, _: Place, name: &str, _: bool, value: Words) -> Result<Words, Infallible> {
        let latex = name_in_latex(name);
        self.equations.push(Equation {
            text: format!("{name} = {}", value.text),
            latex: format!(r"{latex} \leftarrow {}", value.latex),
        });
        Ok(Words::atom(name, &latex))
    }
}

fn precedence(scalar: &Scalar) -> u8 {
    match scalar {
        Scalar::Binary(operator, ..) => operator.precedence(),
        Scalar::Negative(_) => Operator::Multiply.precedence(),
        Scalar::Number(number) if *number < 0.0 => Operator::Multiply.precedence(),
        _ => u8::MAX,
    }
}

/// As text, in parentheses if it binds no tighter than `outer`.
fn wrap(scalar: &Scalar, outer: Operator) -> String {
    let text = scalar_as_text(scalar);
    let tight = precedence(scalar) > outer.precedence()
        || (outer == Operator::Multiply && matches!(scalar, Scalar::Binary(Operator::Multiply, ..)));
    if tight { text } else { format!("({text})") }
}

/// An expression as a scheme file writes it.
pub fn scalar_as_text(scalar: &Scalar) -> String {
    match scalar {
        Scalar::Number(number) => format!("{number}"),
        Scalar::Name(name) => name.clone(),
        Scalar::Negative(inner) => format!("-{}", wrap(inner, Operator::Add)),
        Scalar::Call(function, arguments) => {
            let arguments: Vec<String> = arguments.iter().map(scalar_as_text).collect();
            format!("{}({})", function.name(), arguments.join(", "))
        }
        Scalar::Binary(operator, left, right) => {
            let own = operator.precedence();
            let left_text = scalar_as_text(left);
            let left = if precedence(left) < own || (*operator == Operator::Power && precedence(left) <= own) {
                format!("({left_text})")
            } else {
                left_text
            };
            let right_text = scalar_as_text(right);
            let right = if precedence(right) <= own { format!("({right_text})") } else { right_text };
            match operator {
                Operator::Multiply | Operator::Divide | Operator::Power => {
                    format!("{left}{}{right}", operator.symbol())
                }
                _ => format!("{left} {} {right}", operator.symbol()),
            }
        }
    }
}

/// An expression in LaTeX.
pub fn scalar_in_latex(scalar: &Scalar) -> String {
    match scalar {
        Scalar::Number(number) => format!("{number}"),
        Scalar::Name(name) => name_in_latex(name),
        Scalar::Negative(inner) => format!("-{}", scalar_in_latex(inner)),
        Scalar::Call(function, arguments) => {
            let arguments: Vec<String> = arguments.iter().map(scalar_in_latex).collect();
            match function.name() {
                "sqrt" => format!(r"\sqrt{{{}}}", arguments.join(", ")),
                name => format!(r"\operatorname{{{name}}}\left({}\right)", arguments.join(", ")),
            }
        }
        Scalar::Binary(operator, left, right) => {
            let (l, r) = (scalar_in_latex(left), scalar_in_latex(right));
            let own = operator.precedence();
            let group = |scalar: &Scalar, latex: String, strict: bool| {
                let needs = if strict { precedence(scalar) <= own } else { precedence(scalar) < own };
                if needs { format!(r"\left({latex}\right)") } else { latex }
            };
            match operator {
                Operator::Divide => format!(r"\frac{{{l}}}{{{r}}}"),
                Operator::Power => format!("{{{}}}^{{{r}}}", group(left, l, true)),
                Operator::Multiply => format!(r"{} {}", group(left, l, false), group(right, r, true)),
                Operator::LessEqual => format!(r"{l} \le {r}"),
                Operator::GreaterEqual => format!(r"{l} \ge {r}"),
                Operator::NotEqual => format!(r"{l} \ne {r}"),
                Operator::Equal => format!("{l} = {r}"),
                Operator::And => format!(r"{l} \land {r}"),
                Operator::Or => format!(r"{l} \lor {r}"),
                other => format!("{} {} {}", group(left, l, false), other.symbol(), group(right, r, true)),
            }
        }
    }
}

fn name_in_latex(name: &str) -> String {
    const GREEK: [&str; 20] = [
        "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "kappa", "lambda", "mu", "nu", "xi",
        "pi", "rho", "sigma", "tau", "phi", "psi", "omega",
    ];
    let escaped = name.replace('_', r"\_");
    if GREEK.contains(&name) {
        format!(r"\{name}")
    } else if name.chars().count() == 1 {
        escaped
    } else {
        format!(r"\mathrm{{{escaped}}}")
    }
}
