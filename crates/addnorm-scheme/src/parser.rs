//! Tokens to a syntax tree, by recursive descent with one token of look-ahead.

use crate::error::{SchemeError, Span, nearest};
use crate::lexer::{Kind, Token, lex};
use crate::syntax::*;

/// Deepest nesting of parentheses and calls accepted.
const MAX_NESTING: usize = 48;

/// Names and numbers accepted in one expression. It bounds the depth of every tree, and so every recursion.
const MAX_ATOMS: usize = 256;

/// Equations accepted under one heading.
const MAX_EQUATIONS: usize = 128;

const DIRECTIVES: [&str; 20] = [
    "title", "paper", "claim", "note", "streams", "history", "let", "for", "not", "learn", "norm", "attn", "cross",
    "ffn", "centre", "embed", "init", "each", "block", "head",
];

/// Words that open a directive or are part of the language, and so cannot be names of the author's own.
pub(crate) const RESERVED: [&str; 30] = [
    "title", "paper", "claim", "note", "streams", "history", "let", "for", "not", "learn", "norm", "attn", "ffn",
    "cross", "centre", "embed", "init", "each", "block", "head", "stop", "gate", "sum", "and", "or", "times", "per",
    "of", "pair", "in",
];

pub(crate) fn parse(source: &str) -> Result<File, SchemeError> {
    let tokens = lex(source)?;
    Parser { source, tokens, at: 0, nesting: 0, atoms: 0 }.file()
}

struct Parser<'a> {
    source: &'a str,
    tokens: Vec<Token>,
    at: usize,
    nesting: usize,
    /// Names and numbers of the expression that is being read.
    atoms: usize,
}

type Parsed<T> = Result<T, SchemeError>;

impl Parser<'_> {
    fn peek(&self) -> &Kind {
        &self.tokens[self.at].kind
    }

    fn peek_second(&self) -> &Kind {
        &self.tokens[(self.at + 1).min(self.tokens.len() - 1)].kind
    }

    fn span(&self) -> Span {
        self.tokens[self.at].span
    }

    fn next(&mut self) -> Token {
        let token = self.tokens[self.at].clone();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        token
    }

    fn error<T>(&self, span: Span, message: impl Into<String>, hint: Option<String>) -> Parsed<T> {
        Err(SchemeError::new(self.source, span, message, hint))
    }

    fn expected<T>(&self, what: &str) -> Parsed<T> {
        self.error(self.span(), format!("expected {what}, found {}", self.peek().describe()), None)
    }

    fn is_symbol(&self, symbol: &str) -> bool {
        matches!(self.peek(), Kind::Symbol(found) if *found == symbol)
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Kind::Name(found) if found == word)
    }

    fn take_symbol(&mut self, symbol: &str) -> bool {
        let found = self.is_symbol(symbol);
        if found {
            self.next();
        }
        found
    }

    fn take_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        if found {
            self.next();
        }
        found
    }

    fn symbol(&mut self, symbol: &'static str) -> Parsed<()> {
        if self.take_symbol(symbol) { Ok(()) } else { self.expected(&format!("'{symbol}'")) }
    }

    fn name(&mut self, what: &str) -> Parsed<Named<()>> {
        if let Kind::Name(name) = self.peek().clone() {
            let span = self.next().span;
            return Ok(Named { name, span, value: () });
        }
        self.expected(what)
    }

    /// A name that the author makes, which no word of the language may be.
    fn own_name(&mut self, what: &str) -> Parsed<Named<()>> {
        let name = self.name(what)?;
        if RESERVED.contains(&name.name.as_str()) {
            let message = format!("'{}' is a word of the language", name.name);
            return self.error(name.span, message, Some(format!("choose another name for {what}")));
        }
        Ok(name)
    }

    fn text(&mut self, what: &str) -> Parsed<String> {
        if let Kind::Text(text) = self.peek().clone() {
            self.next();
            return Ok(text);
        }
        self.expected(&format!("{what} in quotes"))
    }

    /// The end of a line, or the ';' that stands for it in a text given inline.
    fn end_of_line(&mut self) -> Parsed<()> {
        if self.take_symbol(";") {
            self.take_newline();
            return Ok(());
        }
        match self.peek() {
            Kind::Newline => {
                self.next();
                Ok(())
            }
            Kind::End | Kind::Dedent => Ok(()),
            _ => self.expected("the end of the line"),
        }
    }

    fn take_newline(&mut self) {
        if matches!(self.peek(), Kind::Newline) {
            self.next();
        }
    }

    fn file(mut self) -> Parsed<File> {
        let mut file = File::default();
        loop {
            match self.peek().clone() {
                Kind::End => return Ok(file),
                Kind::Newline => {
                    self.next();
                }
                Kind::Indent => {
                    return self.error(self.span(), "this line is indented but no heading stands above it", None);
                }
                Kind::Name(word) => self.directive(&word, &mut file)?,
                _ => return self.expected("a directive such as 'each f:' or 'head:'"),
            }
        }
    }

    fn directive(&mut self, word: &str, file: &mut File) -> Parsed<()> {
        let span = self.span();
        let once = |parser: &Self, taken: bool| {
            if taken { parser.error(span, format!("'{word}' is given twice"), None) } else { Ok(()) }
        };
        match word {
            "title" => {
                once(self, file.title.is_some())?;
                self.next();
                file.title = Some(self.text("the title")?);
            }
            "paper" => {
                self.next();
                file.papers.push(self.text("the paper")?);
            }
            "claim" => {
                self.next();
                file.claims.push(self.text("the claim")?);
            }
            "note" => {
                self.next();
                file.notes.push(self.text("the note")?);
            }
            "streams" => {
                once(self, !file.streams.is_empty())?;
                self.next();
                file.streams.push(self.own_name("a stream")?);
                while self.take_symbol(",") {
                    file.streams.push(self.own_name("a stream")?);
                }
            }
            "history" => {
                self.next();
                file.histories.push(self.own_name("a history")?);
                while self.take_symbol(",") {
                    file.histories.push(self.own_name("a history")?);
                }
            }
            "not" => {
                self.next();
                if !self.take_word("for") {
                    return self.expected("'for'");
                }
                let stack = self.name("'decoder', 'encoder' or 'pair'")?;
                let why = self.text("the reason")?;
                file.refusals.push(Named { name: stack.name, span: stack.span, value: why });
            }
            "let" => self.lets(None, &mut file.lets)?,
            "for" => {
                self.next();
                let stack = self.name("'encoder' or 'decoder'")?;
                if stack.name != "encoder" && stack.name != "decoder" {
                    let message = format!("'{}' is not a stack", stack.name);
                    return self.error(stack.span, message, Some("write 'encoder' or 'decoder'".into()));
                }
                let pair = self.take_word("of") && {
                    if !self.take_word("pair") {
                        return self.expected("'pair'");
                    }
                    true
                };
                self.symbol(":")?;
                let only = Some((stack.name, pair));
                if self.is_word("block") || self.is_word("each") {
                    return self.block(only, file);
                }
                if !self.is_word("let") {
                    return self.expected("'let', 'block' or 'each'");
                }
                self.lets(only, &mut file.lets)?;
            }
            "learn" => {
                self.next();
                let name = self.own_name("a learnable")?;
                let size = if self.take_symbol("[") {
                    let size = self.name("a size such as d")?;
                    self.symbol("]")?;
                    Some(size)
                } else {
                    None
                };
                self.symbol("=")?;
                let value = self.expression()?;
                let per_sublayer = self.take_word("per") && {
                    if !self.take_word("sublayer") {
                        return self.expected("'sublayer'");
                    }
                    true
                };
                let definition = Named { name: name.name, span: name.span, value };
                file.learns.push(LearnRule { size, per_sublayer, definition });
            }
            "norm" => {
                once(self, file.norm.is_some())?;
                self.next();
                self.symbol(":")?;
                file.norm = Some(self.name("a norm kind")?);
            }
            "attn" | "cross" | "ffn" => {
                self.next();
                self.symbol(":")?;
                let list = match word {
                    "attn" => &mut file.attention_options,
                    "cross" => &mut file.cross_options,
                    _ => &mut file.ffn_options,
                };
                loop {
                    let mut phrase = self.name("an option")?;
                    while let Kind::Name(more) = self.peek().clone() {
                        phrase.span = phrase.span.to(self.next().span);
                        phrase.name = format!("{} {more}", phrase.name);
                    }
                    list.push(phrase);
                    if !self.take_symbol(",") {
                        break;
                    }
                }
            }
            "centre" => {
                self.next();
                self.symbol(":")?;
                file.centred.push(self.name("a kind of matrix")?);
                while let Kind::Name(_) = self.peek() {
                    file.centred.push(self.name("a kind of matrix")?);
                }
            }
            "init" => self.init(&mut file.inits)?,
            "embed" => {
                once(self, file.embed.is_some())?;
                self.next();
                file.embed = Some(self.body(false)?);
                return Ok(());
            }
            "each" | "block" => return self.block(None, file),
            "head" => {
                once(self, file.head.is_some())?;
                self.next();
                self.symbol(":")?;
                file.head = Some(self.expression()?);
            }
            other => {
                let hint = match nearest(other, DIRECTIVES) {
                    Some(name) => format!("did you mean '{name}'?"),
                    None => "equations stand indented under 'each f:' or 'block:'".into(),
                };
                return self.error(span, format!("'{other}' is not a directive"), Some(hint));
            }
        }
        self.end_of_line()
    }

    fn block(&mut self, only: Option<Only>, file: &mut File) -> Parsed<()> {
        let span = self.span();
        if self.is_word("each") {
            let each = self.each()?;
            file.blocks.push(BlockRule { only, condition: None, body: vec![each], span });
            return Ok(());
        }
        self.next();
        let condition = if self.is_symbol(":") { None } else { Some(self.expression()?) };
        let body = self.body(true)?;
        file.blocks.push(BlockRule { only, condition, body, span });
        Ok(())
    }

    fn lets(&mut self, only: Option<Only>, lets: &mut Vec<LetRule>) -> Parsed<()> {
        self.next();
        loop {
            let name = self.own_name("a constant")?;
            self.symbol("=")?;
            let value = self.expression()?;
            let definition = Named { name: name.name, span: name.span, value };
            lets.push(LetRule { only: only.clone(), definition });
            if !self.take_symbol(",") {
                return Ok(());
            }
        }
    }

    fn init(&mut self, inits: &mut Vec<InitRule>) -> Parsed<()> {
        self.next();
        let mut kinds = vec![self.name("a kind of matrix")?];
        while let Kind::Name(_) = self.peek() {
            kinds.push(self.name("a kind of matrix")?);
        }
        self.symbol(":")?;
        let distribution = if self.is_word("times") {
            None
        } else {
            let name = self.name("a distribution such as normal(0.02), or 'times'")?;
            let (arguments, named) = if self.is_symbol("(") { self.arguments()? } else { Default::default() };
            if let Some(named) = named.first() {
                return self.error(named.span, "a distribution takes its numbers in order", None);
            }
            Some(Named { name: name.name, span: name.span, value: arguments })
        };
        let times = if self.take_word("times") { Some(self.expression()?) } else { None };
        inits.push(InitRule { kinds, distribution, times });
        Ok(())
    }

    fn each(&mut self) -> Parsed<Statement> {
        self.next();
        let variable = self.own_name("the sublayer")?;
        Ok(Statement::Each { variable, body: self.body(false)? })
    }

    /// The lines indented under a heading, or statements on the heading's own line parted by ';'.
    fn body(&mut self, may_each: bool) -> Parsed<Vec<Statement>> {
        self.symbol(":")?;
        let mut body = Vec::new();
        if matches!(self.peek(), Kind::Newline) {
            self.next();
            if !matches!(self.peek(), Kind::Indent) {
                return self.error(self.span(), "expected indented equations under the heading", None);
            }
            self.next();
            while !matches!(self.peek(), Kind::Dedent | Kind::End) {
                body.push(self.statement(may_each, body.len())?);
            }
            if matches!(self.peek(), Kind::Dedent) {
                self.next();
            }
            return Ok(body);
        }
        loop {
            body.push(self.statement(may_each, body.len())?);
            // A word of the language opens the next directive; anything else goes on with this body.
            let goes_on = matches!(self.peek(), Kind::Name(name) if !RESERVED.contains(&name.as_str()))
                && matches!(self.peek_second(), Kind::Symbol("="))
                && self.previous_is(";");
            if !goes_on {
                return Ok(body);
            }
        }
    }

    fn previous_is(&self, symbol: &str) -> bool {
        self.at > 0 && matches!(&self.tokens[self.at - 1].kind, Kind::Symbol(found) if *found == symbol)
    }

    fn statement(&mut self, may_each: bool, before: usize) -> Parsed<Statement> {
        if before >= MAX_EQUATIONS {
            return self.error(self.span(), format!("more than {MAX_EQUATIONS} equations under one heading"), None);
        }
        if may_each && self.is_word("each") {
            return self.each();
        }
        let name = self.own_name("an equation such as x = x + f(norm(x))")?;
        self.symbol("=")?;
        let value = self.expression()?;
        self.end_of_line()?;
        Ok(Statement::Assign(Named { name: name.name, span: name.span, value }))
    }

    fn expression(&mut self) -> Parsed<Expr> {
        if self.nesting == 0 {
            self.atoms = 0;
        }
        self.binary(1)
    }

    fn operator(&self) -> Option<Operator> {
        let operator = match self.peek() {
            Kind::Symbol("+") => Operator::Add,
            Kind::Symbol("-") => Operator::Subtract,
            Kind::Symbol("*") => Operator::Multiply,
            Kind::Symbol("/") => Operator::Divide,
            Kind::Symbol("^") => Operator::Power,
            Kind::Symbol("<") => Operator::Less,
            Kind::Symbol("<=") => Operator::LessEqual,
            Kind::Symbol(">") => Operator::Greater,
            Kind::Symbol(">=") => Operator::GreaterEqual,
            Kind::Symbol("==") => Operator::Equal,
            Kind::Symbol("!=") => Operator::NotEqual,
            Kind::Name(word) if word == "and" => Operator::And,
            Kind::Name(word) if word == "or" => Operator::Or,
            _ => return None,
        };
        Some(operator)
    }

    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.nesting >= MAX_NESTING {
            let message = format!("more than {MAX_NESTING} levels of nesting");
            return self.error(self.span(), message, Some("name an inner part and use the name".into()));
        }
        self.nesting += 1;
        let result = parse(self);
        self.nesting -= 1;
        result
    }

    fn binary(&mut self, minimum: u8) -> Parsed<Expr> {
        self.nested(|parser| {
            let mut left = parser.unary()?;
            while let Some(operator) = parser.operator() {
                if operator.precedence() < minimum {
                    break;
                }
                parser.next();
                // '^' binds to the right, as in mathematics; the others bind to the left.
                let right = parser.binary(operator.precedence() + u8::from(operator != Operator::Power))?;
                let span = left.span.to(right.span);
                left = Expr { kind: ExprKind::Binary(operator, Box::new(left), Box::new(right)), span };
            }
            Ok(left)
        })
    }

    fn unary(&mut self) -> Parsed<Expr> {
        if self.is_symbol("-") {
            let start = self.next().span;
            // -x^2 is -(x^2), as in mathematics.
            let inner = self.binary(Operator::Power.precedence())?;
            let span = start.to(inner.span);
            return Ok(Expr { kind: ExprKind::Negative(Box::new(inner)), span });
        }
        self.atom()
    }

    /// Arguments in order, then those given by name as in `norm(x, eps=1e-7)`.
    fn arguments(&mut self) -> Parsed<(Vec<Expr>, Vec<Named<Expr>>)> {
        self.symbol("(")?;
        let (mut arguments, mut named) = (Vec::new(), Vec::new());
        while !self.is_symbol(")") {
            if matches!(self.peek(), Kind::Name(_)) && matches!(self.peek_second(), Kind::Symbol("=")) {
                let name = self.name("a name")?;
                self.symbol("=")?;
                let value = self.expression()?;
                named.push(Named { name: name.name, span: name.span, value });
            } else if let Some(before) = named.last() {
                let message = format!("what follows '{}' needs a name too", before.name);
                return self.error(self.span(), message, None);
            } else {
                arguments.push(self.expression()?);
            }
            if !self.take_symbol(",") {
                break;
            }
        }
        self.symbol(")")?;
        Ok((arguments, named))
    }

    fn atom(&mut self) -> Parsed<Expr> {
        let span = self.span();
        self.atoms += 1;
        if self.atoms > MAX_ATOMS {
            let message = format!("more than {MAX_ATOMS} names and numbers in one expression");
            return self.error(span, message, Some("name a part with its own equation".into()));
        }
        match self.peek().clone() {
            Kind::Number(number) => {
                self.next();
                Ok(Expr { kind: ExprKind::Number(number), span })
            }
            Kind::Name(name) => {
                self.next();
                if self.is_symbol("(") {
                    let (arguments, named) = self.arguments()?;
                    let span = span.to(self.tokens[self.at - 1].span);
                    return Ok(Expr { kind: ExprKind::Call(name, arguments, named), span });
                }
                Ok(Expr { kind: ExprKind::Name(name), span })
            }
            Kind::Symbol("(") => {
                self.next();
                let inner = self.expression()?;
                let end = self.span();
                self.symbol(")")?;
                Ok(Expr { span: span.to(end), ..inner })
            }
            _ => self.expected("a name, a number or '('"),
        }
    }
}
