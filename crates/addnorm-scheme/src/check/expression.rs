//! Expressions: what each is, a number, a stream or a gate, and its normal form.

use super::*;

/// What can be called with a stream.
const CALLABLE: [&str; 7] = ["norm", "attn", "cross", "ffn", "stop", "gate", "sum"];

/// A sum of one operand.
pub(super) fn single(operand: Operand) -> Sum {
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

impl Checker<'_> {
    pub(super) fn stream(&mut self, expr: &Expr, place: Place) -> Checked<Sum> {
        let typed = self.typed(expr, place)?;
        self.as_stream(typed, expr.span)
    }

    pub(super) fn as_stream(&self, typed: Typed, span: Span) -> Checked<Sum> {
        let hint = Some(format!("a stream such as {} is wanted here", self.streams[0]));
        match typed {
            Typed::Stream(sum) => Ok(sum),
            Typed::Scalar(_) => self.error(span, "this is a number, not a stream", hint),
            Typed::Gate { .. } => {
                self.error(span, "this is a gate, not a stream", Some("multiply a stream by it".into()))
            }
        }
    }

    pub(super) fn scalar(&mut self, expr: &Expr, place: Place) -> Checked<Scalar> {
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

    pub(super) fn typed(&mut self, expr: &Expr, place: Place) -> Checked<Typed> {
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
}
