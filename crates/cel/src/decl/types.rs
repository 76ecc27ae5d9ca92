//! Types of expressions, and how they are written in messages.

use std::fmt;
use std::sync::Arc;

use crate::decl::{Decl, DeclKind};

/// The type of an expression.
#[derive(Debug, Clone)]
pub enum Type {
    /// Known at evaluation only.
    Dyn,
    /// Of what does not compile.
    Error,
    /// `null`
    Null,
    /// `bool`
    Bool,
    /// `int`
    Int,
    /// `uint`
    Uint,
    /// `double`
    Double,
    /// `string`
    String,
    /// `bytes`
    Bytes,
    /// `timestamp`
    Timestamp,
    /// `duration`
    Duration,
    /// `list(T)`
    List(Arc<Type>),
    /// `map(K, V)`
    Map(Arc<(Type, Type)>),
    /// `optional_type(T)`
    Optional(Arc<Type>),
    /// An object of a schema.
    Object(Arc<Decl>),
    /// A type of Kubernetes' libraries.
    Named(&'static str),
    /// The type of types.
    Type(Option<Arc<Type>>),
    /// To be found by the checker, or a parameter of an overload.
    Var(usize),
}

impl Type {
    /// `list(T)`
    pub fn list(item: Self) -> Self {
        Self::List(Arc::new(item))
    }

    /// `map(K, V)`. A key of a type that no key can have is `dyn`.
    pub fn map(key: Self, value: Self) -> Self {
        let key = match key {
            Self::Bool | Self::Int | Self::Uint | Self::String | Self::Var(_) | Self::Error => key,
            _ => Self::Dyn,
        };
        Self::Map(Arc::new((key, value)))
    }

    /// `optional_type(T)`
    pub fn optional(of: Self) -> Self {
        Self::Optional(Arc::new(of))
    }

    pub(crate) fn is_dyn_or_error(&self) -> bool {
        matches!(self, Self::Dyn | Self::Error)
    }

    /// A value of one size.
    pub(crate) fn is_scalar(&self) -> bool {
        match self {
            Self::Bool
            | Self::Double
            | Self::Duration
            | Self::Int
            | Self::Timestamp
            | Self::Uint => true,
            Self::Optional(of) => of.is_scalar(),
            _ => false,
        }
    }

    /// The name without parameters, as `type(x)` shows it.
    pub fn name(&self) -> &str {
        match self {
            Self::Dyn => "dyn",
            Self::Error => "!error!",
            Self::Null => "null_type",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Timestamp => "google.protobuf.Timestamp",
            Self::Duration => "google.protobuf.Duration",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Optional(_) => "optional_type",
            Self::Object(decl) => match &decl.kind {
                DeclKind::Object(object) => &object.name,
                _ => "object",
            },
            Self::Named(name) => name,
            Self::Type(_) => "type",
            Self::Var(_) => "_var",
        }
    }
}

/// Equal types have equal names; objects are equal by name.
impl PartialEq for Type {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::List(a), Self::List(b)) | (Self::Optional(a), Self::Optional(b)) => a == b,
            (Self::Map(a), Self::Map(b)) => a == b,
            (Self::Var(a), Self::Var(b)) => a == b,
            (Self::Type(a), Self::Type(b)) => a == b,
            _ => {
                std::mem::discriminant(self) == std::mem::discriminant(other)
                    && self.name() == other.name()
            }
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Timestamp => f.write_str("timestamp"),
            Self::Duration => f.write_str("duration"),
            Self::List(item) => write!(f, "list({item})"),
            Self::Map(parts) => write!(f, "map({}, {})", parts.0, parts.1),
            Self::Optional(of) => write!(f, "optional_type({of})"),
            Self::Type(Some(of)) => write!(f, "type({of})"),
            Self::Var(id) => write!(f, "_var{id}"),
            other => f.write_str(other.name()),
        }
    }
}
