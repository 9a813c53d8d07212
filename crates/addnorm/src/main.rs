//! addnorm
fn main() {}
