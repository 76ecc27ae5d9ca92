//! Selectors of devices (resource.k8s.io): what their expressions see, and what they have to be.

use std::sync::LazyLock;

use crate::decl::{Decl, DeclKind};
use crate::{Declarations, Program, Type, compile};

/// The variable `device` alone.
static DECLARATIONS: LazyLock<Declarations> = LazyLock::new(|| {
    let simple = |kind| Decl::simple(kind);
    let domains = || Decl::map(Decl::map(simple(DeclKind::Dyn)));
    let device = Decl::object(
        "kubernetes.DRADevice",
        [
            ("driver".to_owned(), Decl::string()),
            ("allowMultipleAllocations".to_owned(), simple(DeclKind::Bool)),
            ("attributes".to_owned(), domains()),
            ("capacity".to_owned(), domains()),
        ],
    );
    let mut declarations = Declarations::default();
    declarations.declared("device", &device);
    declarations
});

/// Compiles a selector. Its only variable, of index 0, is the device: an object with `driver`,
/// `allowMultipleAllocations`, and by domain and name `attributes` and `capacity`.
///
/// # Errors
/// When it is no expression, or its value is not a boolean.
pub fn compile_selector(expression: &str) -> Result<Program, String> {
    let program = compile(expression, &DECLARATIONS)
        .map_err(|issues| format!("compilation failed: {issues}"))?;
    match program.output() {
        Type::Bool | Type::Dyn => Ok(program),
        other => Err(format!("must evaluate to bool or the unknown type, not {other}")),
    }
}
