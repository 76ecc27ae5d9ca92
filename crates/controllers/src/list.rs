//! The list of controllers, in the order in which they start.

use crate::Controller;

/// An entry: names, and the module's `run`.
macro_rules! controllers {
    ($($name:literal $alias:literal $by_default:literal $run:path;)*) => {
        /// All controllers. Each line is one: its name, its older name, whether it runs by default,
        /// and `async fn run(context: Context)` of its module.
        pub fn all() -> Vec<Controller> {
            vec![$(Controller {
                name: $name,
                alias: $alias,
                by_default: $by_default,
                run: |context| Box::pin($run(context)),
            },)*]
        }
    };
}

controllers! {}
