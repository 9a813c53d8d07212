//! Numbers in a scheme: constants from depth and width, and factors made of learnables.

use std::collections::BTreeMap;

use crate::syntax::Operator;

/// A function of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScalarFunction {
    /// Square root.
    Sqrt,
    /// Natural logarithm.
    Ln,
    /// Exponential.
    Exp,
    /// Absolute value.
    Abs,
    /// Nearest integer, halves to even (as Python's `round`).
    Round,
    /// Largest integer not above.
    Floor,
    /// Smallest integer not below.
    Ceil,
    /// The smaller of two.
    Min,
    /// The larger of two.
    Max,
    /// x * sigmoid(x).
    Silu,
    /// Logistic function.
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// The second where the first, a comparison, holds; else the third.
    Choose,
}

impl ScalarFunction {
    /// Every function, by the name it has in the language.
    pub const ALL: [(&'static str, ScalarFunction); 13] = [
        ("sqrt", ScalarFunction::Sqrt),
        ("ln", ScalarFunction::Ln),
        ("exp", ScalarFunction::Exp),
        ("abs", ScalarFunction::Abs),
        ("round", ScalarFunction::Round),
        ("floor", ScalarFunction::Floor),
        ("ceil", ScalarFunction::Ceil),
        ("min", ScalarFunction::Min),
        ("max", ScalarFunction::Max),
        ("silu", ScalarFunction::Silu),
        ("sigmoid", ScalarFunction::Sigmoid),
        ("tanh", ScalarFunction::Tanh),
        ("choose", ScalarFunction::Choose),
    ];

    /// The function of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|&(_, function)| function)
    }

    /// Its name in the language.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, function)| *function == self).map_or("", |(name, _)| name)
    }

    /// How many arguments it takes.
    pub fn arity(self) -> usize {
        match self {
            ScalarFunction::Choose => 3,
            ScalarFunction::Min | ScalarFunction::Max => 2,
            _ => 1,
        }
    }

    /// Whether it may be applied to a learnable, which needs a derivative.
    pub fn is_smooth(self) -> bool {
        use ScalarFunction::*;
        matches!(self, Sqrt | Ln | Exp | Silu | Sigmoid | Tanh)
    }

    /// Its value.
    pub fn apply(self, arguments: &[f64]) -> f64 {
        let x = arguments.first().copied().unwrap_or(f64::NAN);
        let y = arguments.get(1).copied().unwrap_or(f64::NAN);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        match self {
            ScalarFunction::Sqrt => x.sqrt(),
            ScalarFunction::Ln => x.ln(),
            ScalarFunction::Exp => x.exp(),
            ScalarFunction::Abs => x.abs(),
            ScalarFunction::Round => x.round_ties_even(),
            ScalarFunction::Floor => x.floor(),
            ScalarFunction::Ceil => x.ceil(),
            ScalarFunction::Min => x.min(y),
            ScalarFunction::Max => x.max(y),
            ScalarFunction::Silu => x * sigmoid(x),
            ScalarFunction::Sigmoid => sigmoid(x),
            ScalarFunction::Tanh => x.tanh(),
            ScalarFunction::Choose if x != 0.0 => y,
            ScalarFunction::Choose => arguments.get(2).copied().unwrap_or(f64::NAN),
        }
    }
}

/// An expression of numbers and names.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalar {
    /// A literal.
    Number(f64),
    /// A constant, a learnable, or one of the built-in dimensions.
    Name(String),
    /// Minus.
    Negative(Box<Scalar>),
    /// An operator between two.
    Binary(Operator, Box<Scalar>, Box<Scalar>),
    /// A function.
    Call(ScalarFunction, Vec<Scalar>),
}

impl Scalar {
    /// The number one.
    pub fn one() -> Self {
        Scalar::Number(1.0)
    }

    /// Whether it is the literal one.
    pub fn is_one(&self) -> bool {
        *self == Scalar::Number(1.0)
    }

    /// The product, without factors of one.
    pub fn times(self, other: Scalar) -> Scalar {
        match (self, other) {
            (one, other) if one.is_one() => other,
            (this, one) if one.is_one() => this,
            // Reads better: a*(1/b) is a/b.
            (this, Scalar::Binary(Operator::Divide, top, bottom)) if top.is_one() => {
                Scalar::Binary(Operator::Divide, Box::new(this), bottom)
            }
            (Scalar::Negative(this), other) => Scalar::Negative(Box::new(this.times(other))),
            (this, Scalar::Negative(other)) => Scalar::Negative(Box::new(this.times(*other))),
            (this, other) => Scalar::Binary(Operator::Multiply, Box::new(this), Box::new(other)),
        }
    }

    /// Its negative.
    pub fn negated(self) -> Scalar {
        match self {
            Scalar::Number(number) => Scalar::Number(-number),
            Scalar::Negative(inner) => *inner,
            other => Scalar::Negative(Box::new(other)),
        }
    }

    /// Number of nodes.
    pub fn size(&self) -> usize {
        match self {
            Scalar::Number(_) | Scalar::Name(_) => 1,
            Scalar::Negative(inner) => 1 + inner.size(),
            Scalar::Binary(_, left, right) => 1 + left.size() + right.size(),
            Scalar::Call(_, arguments) => 1 + arguments.iter().map(Scalar::size).sum::<usize>(),
        }
    }

    /// Calls `visit` with every name in it.
    pub fn names(&self, visit: &mut dyn FnMut(&str)) {
        match self {
            Scalar::Number(_) => {}
            Scalar::Name(name) => visit(name),
            Scalar::Negative(inner) => inner.names(visit),
            Scalar::Binary(_, left, right) => {
                left.names(visit);
                right.names(visit);
            }
            Scalar::Call(_, arguments) => arguments.iter().for_each(|argument| argument.names(visit)),
        }
    }

    /// Replaces the names that `known` has and computes what then is known.
    pub fn fold(&self, known: &BTreeMap<String, Scalar>) -> Scalar {
        match self {
            Scalar::Number(number) => Scalar::Number(*number),
            Scalar::Name(name) => known.get(name).cloned().unwrap_or_else(|| self.clone()),
            Scalar::Negative(inner) => inner.fold(known).negated(),
            Scalar::Binary(operator, left, right) => match (left.fold(known), right.fold(known)) {
                (Scalar::Number(left), Scalar::Number(right)) => Scalar::Number(operator.apply(left, right)),
                (left, right) => Scalar::Binary(*operator, Box::new(left), Box::new(right)),
            },
            Scalar::Call(function, arguments) => {
                let mut folded: Vec<Scalar> = arguments.iter().map(|argument| argument.fold(known)).collect();
                // Which of the two it is may be known before they are.
                if let (ScalarFunction::Choose, Some(truth)) = (function, folded[0].number()) {
                    return folded.swap_remove(if truth != 0.0 { 1 } else { 2 });
                }
                let numbers: Option<Vec<f64>> = folded.iter().map(Scalar::number).collect();
                match numbers {
                    Some(numbers) => Scalar::Number(function.apply(&numbers)),
                    None => Scalar::Call(*function, folded),
                }
            }
        }
    }

    /// The number that it is, if it is a literal one.
    pub fn number(&self) -> Option<f64> {
        if let Scalar::Number(number) = self { Some(*number) } else { None }
    }
}

impl Operator {
    /// Its value; comparisons and logic give 1 or 0.
    pub fn apply(self, left: f64, right: f64) -> f64 {
        let truth = |value: bool| if value { 1.0 } else { 0.0 };
        match self {
            Operator::Add => left + right,
            Operator::Subtract => left - right,
            Operator::Multiply => left * right,
            Operator::Divide => left / right,
            Operator::Power => left.powf(right),
            Operator::Less => truth(left < right),
            Operator::LessEqual => truth(left <= right),
            Operator::Greater => truth(left > right),
            Operator::GreaterEqual => truth(left >= right),
            Operator::Equal => truth(left == right),
            Operator::NotEqual => truth(left != right),
            Operator::And => truth(left != 0.0 && right != 0.0),
            Operator::Or => truth(left != 0.0 || right != 0.0),
        }
    }
}
