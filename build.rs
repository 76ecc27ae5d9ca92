//! Orders the functions of the program.

fn main() {
    longshore_layout::order_functions();
}
