//! Syntax tree to checked scheme: resolves names, tells numbers from streams, brings sums to normal form.

use std::collections::BTreeSet;

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

    fn stream(&mut self, expr: &Expr, place: Place) -> Checked<Sum> {
        let typed = self.typed(expr, place)?;
        self.as_stream(typed, expr.span)
    }

    fn as_stream(&self, typed: Typed, span: Span) -> Checked<Sum> {
        let hint = Some(format!("a stream such as {} is wanted here", self.streams[0]));
        match typed {
            Typed::Stream(sum) => Ok(sum),
            Typed::Scalar(_) => self.error(span, "this is a number, not a stream", hint),
            Typed::Gate { .. } => {
                self.error(span, "this is a gate, not a stream", Some("multiply a stream by it".into()))
            }
        }
    }

    fn scalar(&mut self, expr: &Expr, place: Place) -> Checked<Scalar> {
        match self.typed(expr, place)? {
            Typed::Scalar(scalar) if is_condition(&scalar) => {
                self.error(expr.span, "this is a comparison; a number is wanted here", None)
            }
            Typed::Scalar(scalar) => Ok(scalar),
            Typed::Stream(_) | Typed::Gate { .. } => {
                self.error(expr.span, "this is a stream; a number is wanted here", None)
            }
        }
    }

    fn typed(&mut self, expr: &Expr, place: Place) -> Checked<Typed> {
        match &expr.kind {
            ExprKind::Number(number) => Ok(Typed::Scalar(Scalar::Number(*number))),
            ExprKind::Name(name) => self.name(name, expr.span, place),
            ExprKind::Negative(inner) => Ok(match self.typed(inner, place)? {
                Typed::Scalar(scalar) => Typed::Scalar(scalar.negated()),
                Typed::Stream(sum) => Typed::Stream(sum.map_coefficients(Scalar::negated)),
                Typed::Gate { constant, terms } => Typed::Gate {
                    constant: constant.negated(),
                    terms: terms.into_iter().map(|(factor, gate)| (factor.negated(), gate)).collect(),
                },
            }),
            ExprKind::Binary(operator, left, right) => {
                let (left_typed, right_typed) = (self.typed(left, place)?, self.typed(right, place)?);
                self.binary(expr, *operator, left_typed, right_typed)
            }
            ExprKind::Call(name, arguments, named) => self.call(name, arguments, named, expr.span, place),
        }
    }

    fn binary(&self, expr: &Expr, operator: Operator, left: Typed, right: Typed) -> Checked<Typed> {
        use Operator::*;
        match (operator, left, right) {
            (_, Typed::Scalar(left), Typed::Scalar(right)) => {
                let wanted = matches!(operator, And | Or);
                if is_condition(&left) != wanted || is_condition(&right) != wanted {
                    let (message, hint) = if wanted {
                        (format!("'{}' joins comparisons", operator.symbol()), "write l == 1 or l == L")
                    } else {
                        (format!("'{}' does not work on a comparison", operator.symbol()), "write 1 < l and l < 4")
                    };
                    return self.error(expr.span, message, Some(hint.into()));
                }
                let learned = self.learnable_in(&right).or_else(|| {
                    // A power of a learnable is smooth; a comparison is not.
                    self.learnable_in(&left).filter(|_| operator.compares())
                });
                if let Some(name) = learned.filter(|_| operator.compares() || operator == Power) {
                    let message = format!("'{}' has no derivative to train '{name}' by", operator.symbol());
                    let hint = (operator == Power).then(|| "use exp(...) for a learned exponent".to_string());
                    return self.error(expr.span, message, hint);
                }
                Ok(Typed::Scalar(Scalar::Binary(operator, Box::new(left), Box::new(right))))
            }
            (Add | Subtract, Typed::Stream(mut left), Typed::Stream(right)) => {
                let right = if operator == Subtract { right.map_coefficients(Scalar::negated) } else { right };
                left.terms.extend(right.terms);
                if left.terms.len() > MAX_TERMS {
                    return self.error(expr.span, format!("more than {MAX_TERMS} terms in one sum"), None);
                }
                Ok(Typed::Stream(left))
            }
            (_, Typed::Scalar(factor), Typed::Stream(_) | Typed::Gate { .. })
            | (_, Typed::Stream(_) | Typed::Gate { .. }, Typed::Scalar(factor))
                if is_condition(&factor) =>
            {
                self.error(
                    expr.span,
                    "a comparison cannot scale a stream",
                    Some("choose with 'block CONDITION:'".into()),
                )
            }
            (Multiply, Typed::Scalar(factor), Typed::Stream(sum))
            | (Multiply, Typed::Stream(sum), Typed::Scalar(factor)) => {
                Ok(Typed::Stream(sum.map_coefficients(|coefficient| factor.clone().times(coefficient))))
            }
            (Divide, Typed::Stream(sum), Typed::Scalar(divisor)) => {
                let inverse = Scalar::Binary(Divide, Box::new(Scalar::one()), Box::new(divisor));
                Ok(Typed::Stream(sum.map_coefficients(|coefficient| coefficient.times(inverse.clone()))))
            }
            (Multiply, Typed::Gate { constant, terms }, Typed::Stream(sum))
            | (Multiply, Typed::Stream(sum), Typed::Gate { constant, terms }) => {
                let mut product = Sum { terms: Vec::new() };
                if constant != Scalar::Number(0.0) {
                    let scaled = sum.clone().map_coefficients(|coefficient| constant.clone().times(coefficient));
                    product.terms.extend(scaled.terms);
                }
                product.terms.extend(terms.into_iter().map(|(coefficient, gate)| {
                    let operand = Operand::Product { gate: Box::new(gate), value: Box::new(sum.clone()) };
                    Term { coefficient, stopped: false, operand }
                }));
                Ok(Typed::Stream(product))
            }
            (Multiply, Typed::Scalar(factor), Typed::Gate { constant, terms })
            | (Multiply, Typed::Gate { constant, terms }, Typed::Scalar(factor)) => {
                let terms = terms.into_iter().map(|(own, gate)| (factor.clone().times(own), gate)).collect();
                let constant = if constant == Scalar::Number(0.0) { constant } else { factor.times(constant) };
                Ok(Typed::Gate { constant, terms })
            }
            (Add | Subtract, left, right) if is_gate_sum(&left, &right) => {
                let (constant, mut terms) = gate_parts(left);
                let (other, others) = gate_parts(right);
                let (other, others) = if operator == Subtract {
                    (other.negated(), others.into_iter().map(|(factor, gate)| (factor.negated(), gate)).collect())
                } else {
                    (other, others)
                };
                terms.extend(others);
                if terms.len() > MAX_TERMS {
                    return self.error(expr.span, format!("more than {MAX_TERMS} terms in one sum"), None);
                }
                let zero = Scalar::Number(0.0);
                let constant = if other == zero || other == Scalar::Number(-0.0) {
                    constant
                } else if constant == zero {
                    other
                } else {
                    Scalar::Binary(Add, Box::new(constant), Box::new(other))
                };
                Ok(Typed::Gate { constant, terms })
            }
            (Multiply, Typed::Stream(_), Typed::Stream(_)) => {
                let hint = "streams can be added, scaled by numbers, and let through by a gate(...)".to_string();
                self.error(expr.span, "two streams cannot be multiplied", Some(hint))
            }
            (Add | Subtract, ..) => {
                let message = "a number and a stream cannot be added";
                self.error(expr.span, message, Some("scale the stream by the number with '*'".into()))
            }
            (operator, ..) => self.error(expr.span, format!("'{}' does not work on streams", operator.symbol()), None),
        }
    }

    fn name(&mut self, name: &str, span: Span, place: Place) -> Checked<Typed> {
        let scalar = Typed::Scalar(Scalar::Name(name.to_string()));
        if self.constants.iter().any(|known| known == name) {
            self.used.insert(name.to_string());
            return Ok(scalar);
        }
        if BUILT_INS.iter().any(|(known, _)| *known == name) {
            let outside = matches!(place, Place::Embed | Place::Head);
            if name == "l" && outside {
                return self.error(span, "'l' is a block's number, and this is outside the blocks", None);
            }
            let is_fixed = matches!(place, Place::Initial | Place::Learn);
            if name == "t" && is_fixed {
                return self.error(span, "'t' is the training step, and this is fixed before training", None);
            }
            let (usable, hint) = match name {
                "entry" => (self.in_sum, "it numbers the entries inside sum(...)"),
                "sublayer" => {
                    (place == Place::Learn || (place == Place::Body && self.each.is_some()), "it stands under 'each'")
                }
                "entries" | MEASURED_EMBEDDING | MEASURED_BRANCHES => {
                    (place == Place::Learn, "it is for where a learnable starts")
                }
                _ => (true, ""),
            };
            if !usable {
                return self.error(span, format!("'{name}' has no value here"), Some(hint.into()));
            }
            return Ok(scalar);
        }
        if self.learnables.iter().any(|known| known == name) {
            let by_entry = self.by_entry.iter().any(|known| known == name);
            if place != Place::Body && !(by_entry && place == Place::Head) {
                let message = format!("'{name}' belongs to a block and cannot be used here");
                return self.error(span, message, None);
            }
            if by_entry && !self.in_sum {
                let message = format!("'{name}' weighs the entries of a history");
                return self.error(span, message, Some(format!("write sum({name}*...)")));
            }
            self.used.insert(name.to_string());
            return Ok(scalar);
        }
        if self.gates.iter().any(|known| known == name) {
            self.used.insert(name.to_string());
            let terms = vec![(Scalar::one(), Operand::Name(name.to_string()))];
            return Ok(Typed::Gate { constant: Scalar::Number(0.0), terms });
        }
        if self.histories.iter().any(|known| known == name) {
            if !self.in_sum {
                let message = format!("'{name}' is a history, of which only a sum has a value");
                return self.error(span, message, Some(format!("write sum({name})")));
            }
            self.used.insert(name.to_string());
            return Ok(Typed::Stream(single(Operand::History(name.to_string()))));
        }
        let is_stream = self.streams.iter().chain(&self.locals).any(|known| known == name);
        let is_place_of_streams = matches!(place, Place::Embed | Place::Body | Place::Head);
        if is_stream && is_place_of_streams {
            self.used.insert(name.to_string());
            return Ok(Typed::Stream(single(Operand::Name(name.to_string()))));
        }
        if is_stream {
            return self.error(span, format!("the stream '{name}' cannot be part of a constant"), None);
        }
        let callable = CALLABLE.contains(&name) || self.each.as_deref() == Some(name);
        if callable {
            return self.error(span, format!("'{name}' needs an argument"), Some(format!("write {name}(x)")));
        }
        let mut known: Vec<&str> = BUILT_INS[..8].iter().map(|(name, _)| *name).collect();
        known.extend(self.constants.iter().chain(&self.learnables).map(String::as_str));
        if is_place_of_streams {
            known.extend(self.streams.iter().chain(&self.locals).map(String::as_str));
        }
        self.error(span, format!("'{name}' is not defined"), Some(suggest(name, known)))
    }

    /// The values of arguments given by name.
    fn settings<const N: usize>(
        &mut self,
        function: &str,
        named: &[Named<Expr>],
        known: [&str; N],
    ) -> Checked<[Option<Scalar>; N]> {
        let mut settings = [const { None }; N];
        for given in named {
            let Some(at) = known.iter().position(|known| *known == given.name) else {
                let message = format!("{function}(...) has no setting '{}'", given.name);
                let hint = if N == 0 { None } else { Some(suggest(&given.name, known)) };
                return self.error(given.span, message, hint);
            };
            if settings[at].is_some() {
                return self.error(given.span, format!("'{}' is given twice", given.name), None);
            }
            settings[at] = Some(self.scalar(&given.value, Place::Initial)?);
        }
        Ok(settings)
    }

    /// `sum(...)`: every entry of a history with its weight.
    fn history_sum(&mut self, argument: &Expr, span: Span, place: Place) -> Checked<Typed> {
        if self.in_sum {
            return self.error(span, "a sum cannot stand inside another", None);
        }
        self.in_sum = true;
        let sum = self.stream(argument, place);
        self.in_sum = false;
        let sum = sum?;
        if sum.terms.iter().any(|term| !matches!(term.operand, Operand::History(_))) {
            let hint = match self.histories.first() {
                Some(name) => format!("write sum({name}), or the same with weights"),
                None => "name one with 'history y', and let every block add to it by an equation 'y = ...'".to_string(),
            };
            return self.error(argument.span, "sum(...) goes over the entries of a history", Some(hint));
        }
        Ok(Typed::Stream(sum))
    }

    fn call(
        &mut self,
        name: &str,
        arguments: &[Expr],
        named: &[Named<Expr>],
        span: Span,
        place: Place,
    ) -> Checked<Typed> {
        let one_stream = |checker: &mut Self| -> Checked<Sum> {
            if !matches!(place, Place::Embed | Place::Body | Place::Head) {
                return checker.error(span, format!("{name}(...) cannot be part of a constant"), None);
            }
            match arguments {
                [argument] => checker.stream(argument, place),
                _ => checker.error(span, format!("{name} takes one stream, not {}", arguments.len()), None),
            }
        };
        if !["norm", "gate"].contains(&name) {
            self.settings(name, named, [])?;
        }
        let sublayer = match name {
            "norm" => {
                let sum = Box::new(one_stream(self)?);
                let [epsilon, gain] = self.settings(name, named, ["eps", "gain"])?;
                return Ok(Typed::Stream(single(Operand::Norm(sum, NormSettings { epsilon, gain }))));
            }
            "gate" => {
                let input = Box::new(one_stream(self)?);
                if place != Place::Body {
                    return self.error(span, "a gate belongs to a block", None);
                }
                let [bias] = self.settings(name, named, ["bias"])?;
                let gate = Operand::Gate { input, bias: bias.unwrap_or(Scalar::Number(0.0)) };
                return Ok(Typed::Gate { constant: Scalar::Number(0.0), terms: vec![(Scalar::one(), gate)] });
            }
            "sum" => {
                let [argument] = arguments else {
                    return self.error(span, format!("sum takes one history, not {}", arguments.len()), None);
                };
                return self.history_sum(argument, span, place);
            }
            "stop" => {
                let mut sum = one_stream(self)?;
                if let Some(name) = sum.terms.iter().find_map(|term| self.learnable_in(&term.coefficient)) {
                    let message = format!("no gradient would reach '{name}' inside stop(...)");
                    return self.error(span, message, Some(format!("write {name}*stop(...)")));
                }
                sum.terms.iter_mut().for_each(|term| term.stopped = true);
                return Ok(Typed::Stream(sum));
            }
            "attn" => Some(Some(Sublayer::Attention)),
            "cross" => Some(Some(Sublayer::Cross)),
            "ffn" => Some(Some(Sublayer::FeedForward)),
            each if self.each.as_deref() == Some(each) => Some(None),
            _ => None,
        };
        if let Some(sublayer) = sublayer {
            if place != Place::Body {
                return self.error(span, format!("{name}(...) is a sublayer, and this is outside the blocks"), None);
            }
            if sublayer.is_some() && self.each.is_some() {
                let variable = self.each.clone().unwrap_or_default();
                let message = format!("{name}(...) stands under 'each {variable}:'");
                let hint = format!("write {variable}(...), or name both sublayers under 'block:'");
                return self.error(span, message, Some(hint));
            }
            let sum = Box::new(one_stream(self)?);
            return Ok(Typed::Stream(single(match sublayer {
                Some(sublayer) => Operand::Sublayer(sublayer, sum),
                None => Operand::EachSublayer(sum),
            })));
        }
        if let Some(function) = ScalarFunction::named(name) {
            if arguments.len() != function.arity() {
                let plural = if function.arity() == 1 { "" } else { "s" };
                let message = format!("{name} takes {} number{plural}, not {}", function.arity(), arguments.len());
                return self.error(span, message, None);
            }
            let mut scalars = Vec::new();
            for (at, argument) in arguments.iter().enumerate() {
                if function == ScalarFunction::Choose && at == 0 {
                    match self.typed(argument, place)? {
                        Typed::Scalar(scalar) if is_condition(&scalar) && self.learnable_in(&scalar).is_none() => {
                            scalars.push(scalar);
                            continue;
                        }
                        _ => {
                            let hint = Some("write choose(l == 1, a, b)".to_string());
                            return self.error(argument.span, "a comparison is wanted here", hint);
                        }
                    }
                }
                let scalar = self.scalar(argument, place)?;
                if let Some(learnable) = self.learnable_in(&scalar).filter(|_| !function.is_smooth()) {
                    let message = format!("{name} has no derivative to train '{learnable}' by");
                    return self.error(argument.span, message, None);
                }
                scalars.push(scalar);
            }
            return Ok(Typed::Scalar(Scalar::Call(function, scalars)));
        }
        let mut known = CALLABLE.to_vec();
        known.extend(self.each.as_deref());
        known.extend(ScalarFunction::ALL.iter().map(|(name, _)| *name));
        self.error(span, format!("'{name}' is not a function"), Some(suggest(name, known)))
    }

    fn learnable_in(&self, scalar: &Scalar) -> Option<String> {
        let mut found = None;
        scalar.names(&mut |name| {
            if self.learnables.iter().any(|known| known == name) {
                found = Some(name.to_string());
            }
        });
        found
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

/// What can be called with a stream.
const CALLABLE: [&str; 7] = ["norm", "attn", "cross", "ffn", "stop", "gate", "sum"];

fn only((stack, pair): &syntax::Only) -> (StackSide, bool) {
    (if stack == "encoder" { StackSide::Encoder } else { StackSide::Decoder }, *pair)
}

/// A sum of one operand.
fn single(operand: Operand) -> Sum {
    Sum { terms: vec![Term { coefficient: Scalar::one(), stopped: false, operand }] }
}

/// Whether this is about gates and numbers alone, one gate at least.
fn is_gate_sum(left: &Typed, right: &Typed) -> bool {
    matches!(
        (left, right),
        (Typed::Gate { .. }, Typed::Gate { .. } | Typed::Scalar(_)) | (Typed::Scalar(_), Typed::Gate { .. })
    )
}

fn gate_parts(typed: Typed) -> (Scalar, Vec<(Scalar, Operand)>) {
    match typed {
        Typed::Gate { constant, terms } => (constant, terms),
        Typed::Scalar(scalar) => (scalar, Vec::new()),
        Typed::Stream(_) => unreachable!("only gates and numbers come here"),
    }
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
