//! Embeds every file of the workspace's `presets/` folder, so that adding a model is adding a file.

use std::{env, fmt::Write, fs, path::Path};

fn main() {
    let presets = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("set by cargo")).join("../../presets");
    println!("cargo:rerun-if-changed={}", presets.display());
    let mut files: Vec<_> = fs::read_dir(&presets)
        .expect("the presets folder is part of the source")
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    files.sort_by_key(|path| path.file_stem().map(|stem| stem.to_owned()));
    let mut table = String::from("&[\n");
    for file in &files {
        let name = file.file_stem().and_then(|stem| stem.to_str()).expect("preset files have plain names");
        println!("cargo:rerun-if-changed={}", file.display());
        writeln!(table, "    ({name:?}, include_str!({:?})),", file.canonicalize().expect("file exists"))
            .expect("writing to a string");
    }
    table.push_str("]\n");
    let out = Path::new(&env::var("OUT_DIR").expect("set by cargo")).join("presets.rs");
    fs::write(out, table).expect("OUT_DIR is writable");
}
