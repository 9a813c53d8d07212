//! Syntax tree to checked scheme: resolves names, tells numbers from streams, brings sums to normal form.

mod expression;

use std::collections::BTreeSet;

use self::expression::single;
use crate::error::{Lint, SchemeError, Span, nearest};
use crate::init::{DistributionKind, InitRule, MatrixKind};
use crate::parser::parse;
use crate::scalar::{Scalar, ScalarFunction};
use crate::scheme::*;
use crate::syntax::{self, Expr, ExprKind, File, Named, Operator, Statement};

/// Dimensions that constants may use.
pub(crate) const BUILT_INS: [(&str, &str); 13] = [
    ("L", "blocks of this stack"),
    ("l", "this block, from 1"),
    ("N", "encoder blocks"),
    ("M", "decoder blocks"),
    ("d", "width"),
    ("h", "attention heads"),
    ("t", "training step, from 0"),
    ("sublayers", "sublayers of this stack"),
    ("sublayer", "this sublayer, from 1"),
    ("entry", "number of an entry of a history, from 0"),
    ("entries", "entries of a history"),
    (MEASURED_EMBEDDING, "variance of the first stream before the blocks"),
    (MEASURED_BRANCHES, "sum of the variances of the outputs of all sublayers before this one"),
];

/// Measured in a pass through the fresh model: the variance of the first stream before the first block.
pub(crate) const MEASURED_EMBEDDING: &str = "measured_embedding";

/// Measured in the same pass: the variances of the outputs of all sublayers before this one, summed.
pub(crate) const MEASURED_BRANCHES: &str = "measured_branches";

/// Largest number of terms in one normal form; distribution over sums cannot blow up beyond it.
const MAX_TERMS: usize = 512;

type Checked<T> = Result<T, SchemeError>;

/// What an expression is.
enum Typed {
    Scalar(Scalar),
    Stream(Sum),
    /// `constant` plus gates with factors, entry by entry.
    Gate {
        constant: Scalar,
        terms: Vec<(Scalar, Operand)>,
    },
}

/// What can be said where.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Constant,
    Initial,
    Learn,
    Embed,
    Body,
    Head,
}

struct Checker<'a> {
    source: &'a str,
    constants: Vec<String>,
    learnables: Vec<String>,
    streams: Vec<String>,
    locals: Vec<String>,
    /// Those of the locals that are gates.
    gates: Vec<String>,
    histories: Vec<String>,
    /// Learnables with one number for each entry of a history.
    by_entry: Vec<String>,
    /// Inside `sum(...)`, where a history and its entries' number have a meaning.
    in_sum: bool,
    each: Option<String>,
    used: BTreeSet<String>,
}

pub(crate) fn check(name: &str, source: &str) -> Checked<Scheme> {
    let file = parse(source)?;
    let mut checker = Checker {
        source,
        constants: Vec::new(),
        learnables: Vec::new(),
        streams: Vec::new(),
        locals: Vec::new(),
        gates: Vec::new(),
        histories: Vec::new(),
        by_entry: Vec::new(),
        in_sum: false,
        each: None,
        used: BTreeSet::new(),
    };
    checker.file(name, &file)
}

impl Checker<'_> {
    fn error<T>(&self, span: Span, message: impl Into<String>, hint: Option<String>) -> Checked<T> {
        Err(SchemeError::new(self.source, span, message, hint))
    }

    fn line(&self, span: Span) -> usize {
        self.source.as_bytes()[..span.start.min(self.source.len())].iter().filter(|&&byte| byte == b'\n').count() + 1
    }

    fn file(&mut self, name: &str, file: &File) -> Checked<Scheme> {
        let streams: Vec<Named<()>> = if file.streams.is_empty() {
            vec![Named { name: "x".into(), span: Span::default(), value: () }]
        } else {
            file.streams.clone()
        };
        for stream in &streams {
            self.new_name(&stream.name, stream.span)?;
            self.streams.push(stream.name.clone());
        }
        for history in &file.histories {
            self.new_name(&history.name, history.span)?;
            self.histories.push(history.name.clone());
        }
        let refusals = file.refusals.iter().map(|refusal| self.refusal(refusal)).collect::<Checked<Vec<_>>>()?;
        let constants = self.constants(file)?;
        let learnables = self.learnables(file)?;
        let norm = match &file.norm {
            None => None,
            Some(word) => Some(self.norm_kind(word)?),
        };
        let options = self.options(file)?;
        let mut centred = Vec::new();
        for word in &file.centred {
            centred.extend(self.matrix_kind(word)?);
        }
        let init = file.inits.iter().map(|rule| self.init(rule)).collect::<Checked<Vec<_>>>()?;
        let embed = match &file.embed {
            None => Vec::new(),
            Some(statements) => {
                self.forget_locals();
                self.assignments(statements, Place::Embed)?
            }
        };
        if file.blocks.is_empty() {
            let span = Span::new(self.source.len(), self.source.len());
            let hint = "write 'each f:' and under it an equation such as x = x + f(norm(x))".to_string();
            return self.error(span, "the scheme defines no blocks", Some(hint));
        }
        let mut bodies: Vec<Body> = Vec::new();
        for rule in &file.blocks {
            let only = rule.only.as_ref().map(only);
            let covers = |body: &Body| body.condition.is_none() && (body.only.is_none() || body.only == only);
            if bodies.last().is_some_and(covers) {
                let hint = "put the body without a condition last".to_string();
                return self.error(rule.span, "no block is left for this body", Some(hint));
            }
            bodies.push(self.body(rule)?);
        }
        let Some(head) = &file.head else {
            let span = Span::new(self.source.len(), self.source.len());
            return self.error(span, "the scheme has no head", Some("end with 'head: norm(x)' or 'head: x'".into()));
        };
        self.forget_locals();
        let head = self.stream(head, Place::Head)?;
        let lints = self.unused(file);
        Ok(Scheme {
            name: name.to_string(),
            title: file.title.clone().unwrap_or_else(|| name.to_string()),
            papers: file.papers.clone(),
            claims: file.claims.clone(),
            notes: file.notes.clone(),
            source: self.source.to_string(),
            streams: self.streams.clone(),
            histories: self.histories.clone(),
            refusals,
            constants,
            learnables,
            norm,
            options,
            centred,
            init,
            embed,
            bodies,
            head,
            lints,
        })
    }

    fn forget_locals(&mut self) {
        self.locals.clear();
        self.gates.clear();
    }

    fn refusal(&self, refusal: &Named<String>) -> Checked<(String, String)> {
        let known = ["decoder", "encoder", "pair"];
        if !known.contains(&refusal.name.as_str()) {
            let message = format!("'{}' is not a stack", refusal.name);
            return self.error(refusal.span, message, Some(suggest(&refusal.name, known)));
        }
        Ok((refusal.name.clone(), refusal.value.clone()))
    }

    fn new_name(&self, name: &str, span: Span) -> Checked<()> {
        let taken = if BUILT_INS.iter().any(|(known, _)| *known == name) {
            Some("a dimension of the language")
        } else if ScalarFunction::named(name).is_some() {
            Some("a function of the language")
        } else if self.streams.iter().any(|known| known == name) {
            Some("a stream already")
        } else if self.histories.iter().any(|known| known == name) {
            Some("a history already")
        } else if self.constants.iter().any(|known| known == name) {
            Some("a constant already")
        } else if self.learnables.iter().any(|known| known == name) {
            Some("a learnable already")
        } else {
            None
        };
        match taken {
            Some(what) => self.error(span, format!("'{name}' is {what}"), Some("choose another name".into())),
            None => Ok(()),
        }
    }

    fn constants(&mut self, file: &File) -> Checked<Vec<Constant>> {
        let mut constants: Vec<Constant> = Vec::new();
        for rule in &file.lets {
            let only = rule.only.as_ref().map(only);
            let name = &rule.definition.name;
            if constants.iter().any(|known| known.name == *name && known.only == only) {
                return self.error(rule.definition.span, format!("'{name}' is defined twice"), None);
            }
            if !self.constants.contains(name) {
                self.new_name(name, rule.definition.span)?;
            }
            let definition = self.scalar(&rule.definition.value, Place::Constant)?;
            if !self.constants.contains(name) {
                self.constants.push(name.clone());
            }
            constants.push(Constant { name: name.clone(), only, definition });
        }
        Ok(constants)
    }

    fn learnables(&mut self, file: &File) -> Checked<Vec<Learnable>> {
        let mut learnables = Vec::new();
        for rule in &file.learns {
            let name = rule.definition.name.clone();
            self.new_name(&name, rule.definition.span)?;
            let size = match &rule.size {
                None => LearnableSize::Scalar,
                Some(size) if size.name == "d" => LearnableSize::Width,
                Some(size) if self.histories.contains(&size.name) => LearnableSize::Entries(size.name.clone()),
                Some(size) => {
                    let hint = format!("write {name}[d] for a vector over the width, or {name} for one scalar");
                    let message = format!("a learnable cannot have the size '{}'", size.name);
                    return self.error(size.span, message, Some(hint));
                }
            };
            let by_entry = matches!(size, LearnableSize::Entries(_));
            if by_entry && rule.per_sublayer {
                let message = format!("'{name}' weighs a history and cannot be per sublayer too");
                return self.error(rule.definition.span, message, None);
            }
            let initial = self.scalar(&rule.definition.value, Place::Learn)?;
            self.only_where_known(&rule.definition, &initial, rule.per_sublayer, by_entry)?;
            self.learnables.push(name.clone());
            if by_entry {
                self.by_entry.push(name.clone());
            }
            learnables.push(Learnable { name, size, per_sublayer: rule.per_sublayer, initial });
        }
        Ok(learnables)
    }

    /// Names that an initial value may only have where they mean something.
    fn only_where_known(
        &self,
        definition: &Named<Expr>,
        initial: &Scalar,
        per_sublayer: bool,
        by_entry: bool,
    ) -> Checked<()> {
        let mut wrong = None;
        initial.names(&mut |name| {
            let needs = match name {
                "sublayer" | MEASURED_BRANCHES | MEASURED_EMBEDDING if !per_sublayer => {
                    "end the line with 'per sublayer'"
                }
                "entries" if !by_entry => "it is for weights of a history, as in 'learn w[y] = 1/entries'",
                "entry" => "weights of a history all start alike",
                _ => return,
            };
            wrong = Some((name.to_string(), needs));
        });
        match wrong {
            Some((name, hint)) => {
                self.error(definition.value.span, format!("'{name}' has no value here"), Some(hint.into()))
            }
            None => Ok(()),
        }
    }

    fn norm_kind(&self, word: &Named<()>) -> Checked<NormKind> {
        let known = NormKind::ALL.iter().map(|(name, _)| *name);
        match NormKind::named(&word.name) {
            Some(kind) => Ok(kind),
            None => {
                self.error(word.span, format!("'{}' is not a norm kind", word.name), Some(suggest(&word.name, known)))
            }
        }
    }

    fn options(&self, file: &File) -> Checked<SublayerOptions> {
        let mut options = SublayerOptions {
            attention: self.attention_options(&file.attention_options)?,
            cross: self.attention_options(&file.cross_options)?,
            ffn_inner_norm: false,
        };
        for phrase in &file.ffn_options {
            if phrase.name != "inner norm" {
                let message = format!("the feed-forward network has no option '{}'", phrase.name);
                return self.error(phrase.span, message, Some(suggest(&phrase.name, ["inner norm"])));
            }
            options.ffn_inner_norm = true;
        }
        Ok(options)
    }

    fn attention_options(&self, phrases: &[Named<()>]) -> Checked<AttentionOptions> {
        let mut options = AttentionOptions::default();
        let known = [
            "scaled heads",
            "inner norm",
            "norm q k per head",
            "norm q k full width",
            "norm q k v per head",
            "norm q k v full width",
        ];
        for phrase in phrases {
            let norms = |value, scope| Some(ProjectionNorms { query: true, key: true, value, scope });
            match phrase.name.as_str() {
                "scaled heads" => options.scaled_heads = true,
                "inner norm" => options.inner_norm = true,
                "norm q k per head" => options.projection_norms = norms(false, HeadNormScope::PerHead),
                "norm q k full width" => options.projection_norms = norms(false, HeadNormScope::FullWidth),
                "norm q k v per head" => options.projection_norms = norms(true, HeadNormScope::PerHead),
                "norm q k v full width" => options.projection_norms = norms(true, HeadNormScope::FullWidth),
                other => {
                    let message = format!("attention has no option '{other}'");
                    return self.error(phrase.span, message, Some(suggest(other, known)));
                }
            }
        }
        Ok(options)
    }

    fn matrix_kind(&self, word: &Named<()>) -> Checked<Vec<MatrixKind>> {
        match MatrixKind::named(&word.name) {
            Some(found) => Ok(found),
            None => {
                let known = MatrixKind::ALL.iter().map(|(name, _)| *name).chain([MatrixKind::GROUP]);
                let message = format!("'{}' is not a kind of matrix", word.name);
                self.error(word.span, message, Some(suggest(&word.name, known)))
            }
        }
    }

    fn init(&mut self, rule: &syntax::InitRule) -> Checked<InitRule> {
        let mut kinds = Vec::new();
        for word in &rule.kinds {
            kinds.extend(self.matrix_kind(word)?);
        }
        let distribution = match &rule.distribution {
            None => None,
            Some(call) => {
                let Some(&(name, kind, fewest, most)) =
                    DistributionKind::ALL.iter().find(|(name, ..)| *name == call.name)
                else {
                    let known = DistributionKind::ALL.iter().map(|(name, ..)| *name);
                    let message = format!("'{}' is not a distribution", call.name);
                    return self.error(call.span, message, Some(suggest(&call.name, known)));
                };
                if call.value.len() < fewest || call.value.len() > most {
                    let wanted = if fewest == most { format!("{fewest}") } else { format!("{fewest} or {most}") };
                    let plural = if wanted == "1" { "" } else { "s" };
                    let message = format!("{name} takes {wanted} number{plural}, not {}", call.value.len());
                    return self.error(call.span, message, None);
                }
                let arguments = call.value.iter().map(|argument| self.scalar(argument, Place::Initial));
                Some((kind, arguments.collect::<Checked<Vec<_>>>()?))
            }
        };
        let times = match &rule.times {
            None => None,
            Some(factor) => Some(self.scalar(factor, Place::Initial)?),
        };
        Ok(InitRule { kinds, distribution, times })
    }

    fn body(&mut self, rule: &syntax::BlockRule) -> Checked<Body> {
        let condition = match &rule.condition {
            None => None,
            Some(expr) => {
                let Typed::Scalar(scalar) = self.typed(expr, Place::Initial)? else {
                    return self.error(expr.span, "this is a stream; a condition is wanted here", None);
                };
                // A bare number picks one block: 'block 1:' is 'block l == 1:'.
                Some(if is_condition(&scalar) {
                    scalar
                } else {
                    Scalar::Binary(Operator::Equal, Box::new(Scalar::Name("l".into())), Box::new(scalar))
                })
            }
        };
        self.forget_locals();
        let mut parts = Vec::new();
        for statement in &rule.body {
            match statement {
                Statement::Assign(_) => {
                    let assignments = self.assignments(std::slice::from_ref(statement), Place::Body)?;
                    parts.extend(assignments.into_iter().map(BodyPart::Assignment));
                }
                Statement::Each { variable, body } => {
                    self.new_name(&variable.name, variable.span)?;
                    self.each = Some(variable.name.clone());
                    let assignments = self.assignments(body, Place::Body)?;
                    self.each = None;
                    parts.push(BodyPart::Each(assignments));
                }
            }
        }
        self.applied_once(rule, &parts)?;
        Ok(Body { only: rule.only.as_ref().map(only), condition, parts })
    }

    /// A block has one attention and one feed-forward network: each is applied once, and one at least.
    fn applied_once(&self, rule: &syntax::BlockRule, parts: &[BodyPart]) -> Checked<()> {
        let mut counts = [0usize; 3];
        for part in parts {
            match part {
                BodyPart::Assignment(assignment) => count_sublayers(&assignment.value, &mut counts, 1),
                BodyPart::Each(assignments) => {
                    let mut inside = [0usize; 3];
                    assignments.iter().for_each(|each| count_sublayers(&each.value, &mut inside, 1));
                    counts.iter_mut().zip(inside).for_each(|(count, inside)| *count += inside);
                }
            }
        }
        for sublayer in Sublayer::ALL {
            let count = counts[sublayer as usize];
            if count > 1 {
                let message = format!("{} is applied {count} times in one block", sublayer.name());
                let hint = "apply it once, name the result, and use the name".to_string();
                return self.error(rule.span, message, Some(hint));
            }
        }
        if counts == [0, 0, 0] {
            let hint = "use attn(...) and ffn(...), or 'each f:' and f(...)".to_string();
            return self.error(rule.span, "this block applies no sublayer", Some(hint));
        }
        Ok(())
    }

    fn assignments(&mut self, statements: &[Statement], place: Place) -> Checked<Vec<Assignment>> {
        let mut assignments = Vec::new();
        for statement in statements {
            let Statement::Assign(named) = statement else { continue };
            let typed = self.typed(&named.value, place)?;
            let is_gate = matches!(typed, Typed::Gate { .. });
            let value = match typed {
                Typed::Gate { constant: Scalar::Number(0.0), mut terms } if terms.len() == 1 && terms[0].0.is_one() => {
                    single(terms.swap_remove(0).1)
                }
                typed => self.as_stream(typed, named.value.span)?,
            };
            let known = self.streams.contains(&named.name) || self.histories.contains(&named.name);
            let was_gate = self.gates.contains(&named.name);
            if is_gate != was_gate && (known || self.locals.contains(&named.name)) {
                let what = if is_gate { "is not a gate, and this is one" } else { "is a gate, and this is none" };
                let message = format!("'{}' {what}", named.name);
                return self.error(named.span, message, Some("choose another name".into()));
            }
            if is_gate && !was_gate {
                self.gates.push(named.name.clone());
            }
            if !known && !self.streams.contains(&named.name) && !self.locals.contains(&named.name) {
                if self.each.as_deref() == Some(named.name.as_str()) {
                    return self.error(named.span, format!("'{}' is the sublayer", named.name), None);
                }
                self.new_name(&named.name, named.span)?;
                self.locals.push(named.name.clone());
            }
            assignments.push(Assignment { target: named.name.clone(), value, line: self.line(named.span) });
        }
        Ok(assignments)
    }

    fn unused(&self, file: &File) -> Vec<Lint> {
        let mut lints = Vec::new();
        for rule in &file.learns {
            if !self.used.contains(&rule.definition.name) {
                lints.push(Lint {
                    code: "unused-learnable",
                    message: format!("no path reaches the learnable '{}'", rule.definition.name),
                    line: Some(self.line(rule.definition.span)),
                });
            }
        }
        let mut seen = BTreeSet::new();
        for rule in &file.lets {
            let name = &rule.definition.name;
            if !self.used.contains(name) && seen.insert(name) {
                let message = format!("the constant '{name}' is never used");
                lints.push(Lint { code: "unused-constant", message, line: Some(self.line(rule.definition.span)) });
            }
        }
        lints
    }
}

fn only((stack, pair): &syntax::Only) -> (StackSide, bool) {
    (if stack == "encoder" { StackSide::Encoder } else { StackSide::Decoder }, *pair)
}

/// Whether an expression is true or false rather than a number.
fn is_condition(scalar: &Scalar) -> bool {
    matches!(scalar, Scalar::Binary(operator, ..) if operator.compares())
}

impl Sum {
    fn map_coefficients(mut self, map: impl Fn(Scalar) -> Scalar) -> Self {
        for term in &mut self.terms {
            term.coefficient = map(std::mem::replace(&mut term.coefficient, Scalar::Number(1.0)));
        }
        self
    }
}

fn count_sublayers(sum: &Sum, counts: &mut [usize; 3], weight: usize) {
    for term in &sum.terms {
        match &term.operand {
            Operand::Name(_) | Operand::History(_) => {}
            Operand::Norm(inner, _) | Operand::Gate { input: inner, .. } => count_sublayers(inner, counts, weight),
            Operand::Product { gate, value } => {
                if let Operand::Gate { input, .. } = gate.as_ref() {
                    count_sublayers(input, counts, weight);
                }
                count_sublayers(value, counts, weight);
            }
            Operand::Sublayer(sublayer, inner) => {
                counts[*sublayer as usize] += weight;
                count_sublayers(inner, counts, weight);
            }
            Operand::EachSublayer(inner) => {
                counts.iter_mut().for_each(|count| *count += weight);
                count_sublayers(inner, counts, weight);
            }
        }
    }
}

fn suggest<'a>(name: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> String {
    match nearest(name, known.clone()) {
        Some(found) => format!("did you mean '{found}'?"),
        None => format!("known here: {}", known.into_iter().collect::<Vec<_>>().join(", ")),
    }
}
