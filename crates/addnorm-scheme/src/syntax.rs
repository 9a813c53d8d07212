//! The syntax tree: what was written, before it is known to make sense.

use crate::error::Span;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Expr {
    pub kind: ExprKind,
    pub span: Span,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ExprKind {
    Number(f64),
    Name(String),
    Negative(Box<Expr>),
    Binary(Operator, Box<Expr>, Box<Expr>),
    /// Arguments in order, then those given by name.
    Call(String, Vec<Expr>, Vec<Named<Expr>>),
}

/// A binary operator of the language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`
    Divide,
    /// `^`
    Power,
    /// `<`
    Less,
    /// `<=`
    LessEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterEqual,
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `and`
    And,
    /// `or`
    Or,
}

impl Operator {
    /// As it is written.
    pub fn symbol(self) -> &'static str {
        match self {
            Operator::Add => "+",
            Operator::Subtract => "-",
            Operator::Multiply => "*",
            Operator::Divide => "/",
            Operator::Power => "^",
            Operator::Less => "<",
            Operator::LessEqual => "<=",
            Operator::Greater => ">",
            Operator::GreaterEqual => ">=",
            Operator::Equal => "==",
            Operator::NotEqual => "!=",
            Operator::And => "and",
            Operator::Or => "or",
        }
    }

    /// How tightly it binds; larger is tighter.
    pub(crate) fn precedence(self) -> u8 {
        match self {
            Operator::Or => 1,
            Operator::And => 2,
            Operator::Less
            | Operator::LessEqual
            | Operator::Greater
            | Operator::GreaterEqual
            | Operator::Equal
            | Operator::NotEqual => 3,
            Operator::Add | Operator::Subtract => 4,
            Operator::Multiply | Operator::Divide => 5,
            Operator::Power => 7,
        }
    }

    pub(crate) fn compares(self) -> bool {
        self.precedence() <= 3
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Named<T> {
    pub name: String,
    pub span: Span,
    pub value: T,
}

/// The stack that a rule is for (`encoder`, `decoder`) and whether only as one of a pair.
pub(crate) type Only = (String, bool);

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LetRule {
    pub only: Option<Only>,
    pub definition: Named<Expr>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LearnRule {
    pub size: Option<Named<()>>,
    pub per_sublayer: bool,
    pub definition: Named<Expr>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct InitRule {
    pub kinds: Vec<Named<()>>,
    pub distribution: Option<Named<Vec<Expr>>>,
    pub times: Option<Expr>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Statement {
    Assign(Named<Expr>),
    Each { variable: Named<()>, body: Vec<Statement> },
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BlockRule {
    pub only: Option<Only>,
    pub condition: Option<Expr>,
    pub body: Vec<Statement>,
    pub span: Span,
}

/// A whole file.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct File {
    pub title: Option<String>,
    pub papers: Vec<String>,
    pub claims: Vec<String>,
    pub notes: Vec<String>,
    pub streams: Vec<Named<()>>,
    pub histories: Vec<Named<()>>,
    /// Stacks that the scheme has no form for, and why.
    pub refusals: Vec<Named<String>>,
    pub lets: Vec<LetRule>,
    pub learns: Vec<LearnRule>,
    pub norm: Option<Named<()>>,
    pub attention_options: Vec<Named<()>>,
    pub cross_options: Vec<Named<()>>,
    pub centred: Vec<Named<()>>,
    pub ffn_options: Vec<Named<()>>,
    pub inits: Vec<InitRule>,
    pub embed: Option<Vec<Statement>>,
    pub blocks: Vec<BlockRule>,
    pub head: Option<Expr>,
}
