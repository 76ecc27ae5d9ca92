//! From text to tree, with macros expanded. Nesting is limited, so that no later walk over the tree
//! can exhaust the stack.

use std::sync::Arc;

use crate::ast::{ACCUMULATOR, Comprehension, Expr, Kind};
use crate::issue::Issue;
use crate::keywords::RESERVED;
use crate::lexer::{Token, tokens};
use crate::runtime::value::Const;

/// The deepest tree. Upstream's parser gives up at 250 nested rules.
pub(crate) const MOST_DEPTH: usize = 120;
/// The deepest nesting of parentheses.
const MOST_NESTING: usize = 80;
/// The most characters, as upstream's.
const MOST_CHARS: usize = 100_000;

/// What upstream says of no expression: all that one can begin with.
const NOTHING: &str = "Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', \
     'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";

type Parsed<T = Expr> = Result<T, Issue>;

/// What was read, and how many ids were given.
pub(crate) fn parse(source: &str) -> Parsed<(Expr, usize)> {
    let size = source.chars().count();
    if size > MOST_CHARS {
        let message =
            format!("expression code point size exceeds limit: size: {size}, limit {MOST_CHARS}");
        return Err(Issue::new(None, message));
    }
    if source.is_empty() {
        return Err(Issue::new(Some(0), NOTHING));
    }
    let tokens = tokens(source).map_err(|(at, message)| Issue::new(Some(at), message))?;
    let mut parser = Parser { tokens, next: 0, ids: 0, nesting: 0 };
    let expr = parser.expr()?;
    match parser.peek() {
        Token::End => Ok((expr, parser.ids)),
        other => {
            let message =
                format!("Syntax error: mismatched input {} expecting <EOF>", other.shown());
            Err(parser.failed(message))
        }
    }
}

struct Parser {
    tokens: Vec<(Token, usize)>,
    next: usize,
    ids: usize,
    nesting: usize,
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.next).map_or(&Token::End, |(token, _)| token)
    }

    fn at(&self) -> usize {
        self.tokens.get(self.next).or(self.tokens.last()).map_or(0, |(_, at)| *at)
    }

    fn failed(&self, message: impl Into<String>) -> Issue {
        Issue::new(Some(self.at()), message)
    }

    fn unexpected<T>(&self) -> Parsed<T> {
        Err(self.failed(format!("Syntax error: mismatched input {}", self.peek().shown())))
    }

    fn is(&self, punct: &str) -> bool {
        matches!(self.peek(), Token::Punct(found) if *found == punct)
    }

    /// Goes past the word, if it is this one.
    fn skip(&mut self, punct: &str) -> bool {
        let found = self.is(punct);
        if found {
            self.next += 1;
        }
        found
    }

    fn expect(&mut self, punct: &str) -> Parsed<()> {
        if self.skip(punct) {
            return Ok(());
        }
        let found = self.peek().shown();
        Err(self.failed(format!("Syntax error: mismatched input {found} expecting '{punct}'")))
    }

    fn make(&mut self, at: usize, kind: Kind) -> Parsed {
        let deepest = match &kind {
            Kind::Literal(_) | Kind::Ident(_) => 0,
            Kind::Select { operand, .. } => operand.depth,
            Kind::Call { target, args, .. } => {
                args.iter().chain(target.as_deref()).map(|e| e.depth).max().unwrap_or(0)
            }
            Kind::List(items) => items.iter().map(|(e, _)| e.depth).max().unwrap_or(0),
            Kind::Map(entries) => {
                entries.iter().map(|(k, v, _)| k.depth.max(v.depth)).max().unwrap_or(0)
            }
            Kind::Struct { fields, .. } => fields.iter().map(|f| f.1.depth).max().unwrap_or(0),
            Kind::Comprehension(c) => {
                let parts = [&c.range, &c.init, &c.condition, &c.step, &c.result];
                parts.iter().map(|e| e.depth).max().unwrap_or(0)
            }
        };
        if deepest >= MOST_DEPTH {
            let message = format!("expression recursion limit exceeded: {MOST_DEPTH}");
            return Err(Issue::new(Some(at), message));
        }
        let id = self.ids;
        self.ids += 1;
        Ok(Expr { id, at, depth: deepest + 1, kind })
    }

    fn literal(&mut self, at: usize, value: Const) -> Parsed {
        self.make(at, Kind::Literal(value))
    }

    fn ident(&mut self, at: usize, name: &str) -> Parsed {
        self.make(at, Kind::Ident(name.into()))
    }

    fn call(&mut self, at: usize, name: &str, args: Vec<Expr>) -> Parsed {
        self.make(at, Kind::Call { target: None, name: name.into(), args })
    }

    fn member(&mut self, at: usize, target: Expr, name: &str, args: Vec<Expr>) -> Parsed {
        self.make(at, Kind::Call { target: Some(Box::new(target)), name: name.into(), args })
    }

    fn expr(&mut self) -> Parsed {
        self.nesting += 1;
        if self.nesting > MOST_NESTING {
            return Err(self.failed(format!("expression recursion limit exceeded: {MOST_NESTING}")));
        }
        let condition = self.or()?;
        let at = self.at();
        let expr = if self.skip("?") {
            let yes = self.or()?;
            self.expect(":")?;
            let no = self.expr()?;
            self.call(at, "_?_:_", vec![condition, yes, no])?
        } else {
            condition
        };
        self.nesting -= 1;
        Ok(expr)
    }

    fn or(&mut self) -> Parsed {
        self.chain("||", "_||_", Self::and)
    }

    fn and(&mut self) -> Parsed {
        self.chain("&&", "_&&_", |parser| parser.binary(0))
    }

    /// Operands between one operator, as a balanced tree.
    fn chain(&mut self, op: &str, name: &str, operand: impl Fn(&mut Self) -> Parsed) -> Parsed {
        let mut terms = vec![operand(self)?];
        let mut places = Vec::new();
        loop {
            let at = self.at();
            if !self.skip(op) {
                break;
            }
            places.push(at);
            terms.push(operand(self)?);
        }
        while terms.len() > 1 {
            let mut level = Vec::with_capacity(terms.len().div_ceil(2));
            let mut between = Vec::new();
            let mut terms_left = terms.into_iter();
            let mut places_left = places.into_iter();
            while let Some(left) = terms_left.next() {
                match (terms_left.next(), places_left.next()) {
                    (Some(right), Some(at)) => {
                        level.push(self.call(at, name, vec![left, right])?);
                    }
                    _ => level.push(left),
                }
                between.extend(places_left.next());
            }
            (terms, places) = (level, between);
        }
        terms.pop().map_or_else(|| self.unexpected(), Ok)
    }

    fn operator(&self, level: usize) -> Option<&'static str> {
        let name = match (level, self.peek()) {
            (0, Token::Ident(name)) if name == "in" => "@in",
            (0, Token::Punct("<")) => "_<_",
            (0, Token::Punct("<=")) => "_<=_",
            (0, Token::Punct(">")) => "_>_",
            (0, Token::Punct(">=")) => "_>=_",
            (0, Token::Punct("==")) => "_==_",
            (0, Token::Punct("!=")) => "_!=_",
            (1, Token::Punct("+")) => "_+_",
            (1, Token::Punct("-")) => "_-_",
            (2, Token::Punct("*")) => "_*_",
            (2, Token::Punct("/")) => "_/_",
            (2, Token::Punct("%")) => "_%_",
            _ => return None,
        };
        Some(name)
    }

    /// Comparisons (0), sums (1) and products (2), from the left.
    fn binary(&mut self, level: usize) -> Parsed {
        if level > 2 {
            return self.unary();
        }
        let mut left = self.binary(level + 1)?;
        while let Some(name) = self.operator(level) {
            let at = self.at();
            self.next += 1;
            let right = self.binary(level + 1)?;
            left = self.call(at, name, vec![left, right])?;
        }
        Ok(left)
    }

    fn unary(&mut self) -> Parsed {
        let at = self.at();
        for (op, name) in [("!", "!_"), ("-", "-_")] {
            let mut count: usize = 0;
            while self.is(op) {
                let number = matches!(
                    self.tokens.get(self.next + 1),
                    Some((Token::Int(_) | Token::Double(_), _))
                );
                if op == "-" && number {
                    break;
                }
                self.next += 1;
                count += 1;
            }
            if count > 0 {
                let operand = self.postfix()?;
                return match count % 2 {
                    0 => Ok(operand),
                    _ => self.call(at, name, vec![operand]),
                };
            }
        }
        self.postfix()
    }

    fn postfix(&mut self) -> Parsed {
        let mut expr = self.primary()?;
        loop {
            let at = self.at();
            if self.skip(".") {
                let optional = self.skip("?");
                let field = match self.peek().clone() {
                    Token::Ident(name) if !matches!(&*name, "in" | "true" | "false" | "null") => {
                        name
                    }
                    Token::Quoted(name) => name,
                    _ => return self.unexpected(),
                };
                self.next += 1;
                let open = self.at();
                if optional {
                    let field = self.literal(at, Const::String(field.into()))?;
                    expr = self.call(at, "_?._", vec![expr, field])?;
                } else if self.skip("(") {
                    let args = self.args(")")?;
                    expr = self.method(open, expr, &field, args)?;
                } else {
                    let operand = Box::new(expr);
                    expr =
                        self.make(at, Kind::Select { operand, field: field.into(), test: false })?;
                }
            } else if self.is("[") || self.is("[?") {
                let name = if self.skip("[?") { "_[?_]" } else { "_[_]" };
                if name == "_[_]" {
                    self.next += 1;
                }
                let index = self.expr()?;
                self.expect("]")?;
                expr = self.call(at, name, vec![expr, index])?;
            } else if self.is("{") && expr.qualified().is_some() {
                self.next += 1;
                let name = expr.qualified().unwrap_or_default();
                let mut fields = Vec::new();
                while !self.is("}") {
                    let optional = self.skip("?");
                    let (Token::Ident(field) | Token::Quoted(field)) = self.peek().clone() else {
                        return self.unexpected();
                    };
                    self.next += 1;
                    self.expect(":")?;
                    fields.push((field.into(), self.expr()?, optional));
                    if !self.skip(",") {
                        break;
                    }
                }
                self.expect("}")?;
                expr = self.make(at, Kind::Struct { name: name.into(), fields })?;
            } else {
                return Ok(expr);
            }
        }
    }

    fn args(&mut self, close: &str) -> Parsed<Vec<Expr>> {
        let mut args = Vec::new();
        if self.skip(close) {
            return Ok(args);
        }
        loop {
            args.push(self.expr()?);
            if !self.skip(",") {
                break;
            }
        }
        self.expect(close)?;
        Ok(args)
    }

    fn primary(&mut self) -> Parsed {
        let at = self.at();
        let token = self.peek().clone();
        self.next += 1;
        let value = match token {
            Token::Punct("(") => {
                let expr = self.expr()?;
                self.expect(")")?;
                return Ok(expr);
            }
            Token::Punct("[") => return self.list(at, false),
            Token::Punct("[?") => return self.list(at, true),
            Token::Punct("{") => return self.map(at, false),
            Token::Punct("{?") => return self.map(at, true),
            Token::Punct(".") => match self.peek() {
                Token::Ident(_) => return self.name(at),
                _ => return self.unexpected(),
            },
            Token::Punct("-") => match self.peek().clone() {
                Token::Int(text) => {
                    self.next += 1;
                    self.int(at, &format!("-{text}"))?
                }
                Token::Double(text) => {
                    self.next += 1;
                    self.double(at, &format!("-{text}"))?
                }
                _ => {
                    self.next -= 1;
                    return self.unexpected();
                }
            },
            Token::Int(text) => self.int(at, &text)?,
            Token::Uint(text) => {
                let parsed = match text.strip_prefix("0x") {
                    Some(hex) => u64::from_str_radix(hex, 16),
                    None => text.parse(),
                };
                let failed = |_| Issue::new(Some(at), "invalid uint literal");
                Const::Uint(parsed.map_err(failed)?)
            }
            Token::Double(text) => self.double(at, &text)?,
            Token::String(text) => Const::String(text.into()),
            Token::Bytes(bytes) => Const::Bytes(bytes.into()),
            Token::Ident(name) => match &*name {
                "true" => Const::Bool(true),
                "false" => Const::Bool(false),
                "null" => Const::Null,
                _ => {
                    self.next -= 1;
                    return self.name(at);
                }
            },
            Token::Quoted(_) | Token::Punct(_) | Token::End => {
                self.next -= 1;
                return self.unexpected();
            }
        };
        self.literal(at, value)
    }

    fn int(&self, at: usize, text: &str) -> Parsed<Const> {
        let failed = |_| Issue::new(Some(at), "invalid int literal");
        let parsed = match (text.strip_prefix("0x"), text.strip_prefix("-0x")) {
            (Some(hex), _) => i64::from_str_radix(hex, 16),
            (_, Some(hex)) => i64::from_str_radix(&format!("-{hex}"), 16),
            _ => text.parse(),
        };
        Ok(Const::Int(parsed.map_err(failed)?))
    }

    fn double(&self, at: usize, text: &str) -> Parsed<Const> {
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Const::Double(number)),
            _ => Err(Issue::new(Some(at), "invalid double literal")),
        }
    }

    /// An identifier or a call of a function.
    fn name(&mut self, at: usize) -> Parsed {
        let Token::Ident(name) = self.peek().clone() else { return self.unexpected() };
        if name == "in" {
            return self.unexpected();
        }
        if RESERVED.contains(&&*name) {
            return Err(Issue::new(Some(at), format!("reserved identifier: {name}")));
        }
        self.next += 1;
        let open = self.at();
        if !self.skip("(") {
            return self.ident(at, &name);
        }
        let mut args = self.args(")")?;
        if name != "has" || args.len() != 1 {
            return self.call(open, &name, args);
        }
        match args.pop().map(|arg| (arg.at, arg.kind)) {
            Some((_, Kind::Select { operand, field, test: false })) => {
                self.make(open, Kind::Select { operand, field, test: true })
            }
            other => {
                let at = other.map_or(at, |(at, _)| at);
                Err(Issue::new(Some(at), "invalid argument to has() macro"))
            }
        }
    }

    fn list(&mut self, at: usize, mut optional: bool) -> Parsed {
        let mut items = Vec::new();
        while optional || !self.is("]") {
            optional |= self.skip("?");
            items.push((self.expr()?, optional));
            optional = false;
            if !self.skip(",") {
                break;
            }
        }
        self.expect("]")?;
        self.make(at, Kind::List(items))
    }

    fn map(&mut self, at: usize, mut optional: bool) -> Parsed {
        let mut entries = Vec::new();
        while optional || !self.is("}") {
            optional |= self.skip("?");
            let key = self.expr()?;
            self.expect(":")?;
            entries.push((key, self.expr()?, optional));
            optional = false;
            if !self.skip(",") {
                break;
            }
        }
        self.expect("}")?;
        self.make(at, Kind::Map(entries))
    }

    /// A call on a target: a macro, if there is one of that name and number of arguments.
    fn method(&mut self, at: usize, target: Expr, name: &str, mut args: Vec<Expr>) -> Parsed {
        let range = |args: &mut Vec<Expr>, count| args.drain(..count).collect::<Vec<_>>();
        match (name, args.len()) {
            ("all" | "exists" | "exists_one" | "existsOne", count @ (2 | 3)) => {
                let names = range(&mut args, count - 1);
                self.quantifier(at, name, target, &names, args)
            }
            ("map", 2 | 3) | ("filter", 2) => {
                let variable = range(&mut args, 1);
                let names = variables(&variable, "argument is not an identifier")?;
                let value = match (name, args.len()) {
                    ("filter", _) => self.ident(at, &names[0])?,
                    _ => match args.pop() {
                        Some(value) => value,
                        None => return self.unexpected(),
                    },
                };
                self.transform_list(at, target, &names, args.pop(), value)
            }
            ("transformList" | "transformMap" | "transformMapEntry", 3 | 4) => {
                let names = variables(&range(&mut args, 2), "argument must be a simple name")?;
                let Some(value) = args.pop() else { return self.unexpected() };
                match name {
                    "transformList" => self.transform_list(at, target, &names, args.pop(), value),
                    _ => {
                        let entry = name == "transformMapEntry";
                        self.transform_map(at, target, &names, args.pop(), value, entry)
                    }
                }
            }
            ("optMap" | "optFlatMap", 2) => {
                let variable = range(&mut args, 1);
                let names = variables(&variable, "argument must be a simple name")?;
                let Some(body) = args.pop() else { return self.unexpected() };
                self.opt_map(at, target, &names[0], body, name == "optMap")
            }
            ("sortBy", 2) => {
                let variable = range(&mut args, 1);
                let names = variables(&variable, "argument is not an identifier")?;
                let Some(key) = args.pop() else { return self.unexpected() };
                let input = self.ident(at, "@input")?;
                let keys = self.transform_list(at, input, &names, None, key)?;
                let input = self.ident(at, "@input")?;
                let body = self.member(at, input, "@sortByAssociatedKeys", vec![keys])?;
                self.bind(at, "@input", target, body)
            }
            ("bind", 3) if matches!(&target.kind, Kind::Ident(name) if &**name == "cel") => {
                let variable = range(&mut args, 1);
                let message = "cel.bind() variable names must be simple identifiers";
                let names = variables(&variable, message)?;
                let (Some(body), Some(init)) = (args.pop(), args.pop()) else {
                    return self.unexpected();
                };
                self.bind(at, &names[0], init, body)
            }
            _ => self.member(at, target, name, args),
        }
    }

    fn accumulator(&mut self, at: usize) -> Parsed {
        self.ident(at, ACCUMULATOR)
    }

    #[allow(clippy::too_many_arguments)] // the parts of a comprehension
    fn fold(
        &mut self,
        at: usize,
        range: Expr,
        names: &[Arc<str>],
        init: Expr,
        condition: Expr,
        step: Expr,
        result: Expr,
    ) -> Parsed {
        let fold = Comprehension {
            range,
            variable: names.first().cloned().unwrap_or_else(|| "#unused".into()),
            second: names.get(1).cloned(),
            accumulator: ACCUMULATOR.into(),
            init,
            condition,
            step,
            result,
        };
        self.make(at, Kind::Comprehension(Box::new(fold)))
    }

    fn bind(&mut self, at: usize, name: &str, init: Expr, body: Expr) -> Parsed {
        let bind = Comprehension {
            range: self.make(at, Kind::List(Vec::new()))?,
            variable: "#unused".into(),
            second: None,
            accumulator: name.into(),
            init,
            condition: self.literal(at, Const::Bool(false))?,
            step: self.ident(at, name)?,
            result: body,
        };
        self.make(at, Kind::Comprehension(Box::new(bind)))
    }

    fn quantifier(
        &mut self,
        at: usize,
        name: &str,
        target: Expr,
        names: &[Expr],
        mut args: Vec<Expr>,
    ) -> Parsed {
        let names = variables(names, "argument must be a simple name")?;
        let Some(predicate) = args.pop() else { return self.unexpected() };
        let accumulator = self.accumulator(at)?;
        match name {
            "all" | "exists" => {
                let all = name == "all";
                let init = self.literal(at, Const::Bool(all))?;
                let mut holds = self.accumulator(at)?;
                if !all {
                    holds = self.call(at, "!_", vec![holds])?;
                }
                let condition = self.call(at, "@not_strictly_false", vec![holds])?;
                let op = if all { "_&&_" } else { "_||_" };
                let step = self.call(at, op, vec![accumulator, predicate])?;
                let result = self.accumulator(at)?;
                self.fold(at, target, &names, init, condition, step, result)
            }
            _ => {
                let init = self.literal(at, Const::Int(0))?;
                let condition = self.literal(at, Const::Bool(true))?;
                let one = self.literal(at, Const::Int(1))?;
                let more = self.call(at, "_+_", vec![accumulator, one])?;
                let same = self.accumulator(at)?;
                let step = self.call(at, "_?_:_", vec![predicate, more, same])?;
                let (count, one) = (self.accumulator(at)?, self.literal(at, Const::Int(1))?);
                let result = self.call(at, "_==_", vec![count, one])?;
                self.fold(at, target, &names, init, condition, step, result)
            }
        }
    }

    fn filtered(&mut self, at: usize, filter: Option<Expr>, step: Expr) -> Parsed {
        let Some(filter) = filter else { return Ok(step) };
        let same = self.accumulator(at)?;
        self.call(at, "_?_:_", vec![filter, step, same])
    }

    fn transform_list(
        &mut self,
        at: usize,
        target: Expr,
        names: &[Arc<str>],
        filter: Option<Expr>,
        value: Expr,
    ) -> Parsed {
        let accumulator = self.accumulator(at)?;
        let item = self.make(at, Kind::List(vec![(value, false)]))?;
        let step = self.call(at, "_+_", vec![accumulator, item])?;
        let step = self.filtered(at, filter, step)?;
        let init = self.make(at, Kind::List(Vec::new()))?;
        let condition = self.literal(at, Const::Bool(true))?;
        let result = self.accumulator(at)?;
        self.fold(at, target, names, init, condition, step, result)
    }

    fn transform_map(
        &mut self,
        at: usize,
        target: Expr,
        names: &[Arc<str>],
        filter: Option<Expr>,
        value: Expr,
        entry: bool,
    ) -> Parsed {
        let mut args = vec![self.accumulator(at)?];
        if !entry {
            args.push(self.ident(at, &names[0])?);
        }
        args.push(value);
        let step = self.call(at, "cel.@mapInsert", args)?;
        let step = self.filtered(at, filter, step)?;
        let init = self.make(at, Kind::Map(Vec::new()))?;
        let condition = self.literal(at, Const::Bool(true))?;
        let result = self.accumulator(at)?;
        self.fold(at, target, names, init, condition, step, result)
    }

    /// The target has a name of its own, so that it is in the tree once.
    fn opt_map(&mut self, at: usize, target: Expr, name: &str, body: Expr, wrap: bool) -> Parsed {
        let body = if wrap { self.call(at, "optional.of", vec![body])? } else { body };
        let input = self.ident(at, "@target")?;
        let value = self.member(at, input, "value", Vec::new())?;
        let some = self.bind(at, name, value, body)?;
        let input = self.ident(at, "@target")?;
        let has = self.member(at, input, "hasValue", Vec::new())?;
        let none = self.call(at, "optional.none", Vec::new())?;
        let chosen = self.call(at, "_?_:_", vec![has, some, none])?;
        self.bind(at, "@target", target, chosen)
    }
}

/// The names of iteration variables.
fn variables(args: &[Expr], message: &str) -> Parsed<Vec<Arc<str>>> {
    let mut names: Vec<Arc<str>> = Vec::new();
    for arg in args {
        let Kind::Ident(name) = &arg.kind else { return Err(Issue::new(Some(arg.at), message)) };
        if &**name == "__result__" {
            let message = "iteration variable overwrites accumulator variable";
            return Err(Issue::new(Some(arg.at), message));
        }
        if names.contains(name) {
            return Err(Issue::new(Some(arg.at), format!("duplicate variable name: {name}")));
        }
        names.push(name.clone());
    }
    Ok(names)
}
