//! Every scheme that comes with addnorm, as its users see it.

use addnorm_scheme::cost::{Sizes, cost};
use addnorm_scheme::diagram::diagram;
use addnorm_scheme::prose::prose;
use addnorm_scheme::*;

fn dimensions(blocks: usize) -> Dimensions {
    Dimensions { blocks, width: 64, heads: 4, stack: Stack::Decoder }
}

#[test]
fn every_scheme_parses_without_a_lint_and_plans_at_every_depth() {
    for (name, text) in library() {
        let scheme = Scheme::parse(name, text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(scheme.lints, [], "{name}");
        assert!(!scheme.papers.is_empty(), "{name} says where it was published");
        for blocks in [1, 2, 3, 7, 24, 1000] {
            let plan = scheme.plan(dimensions(blocks)).unwrap();
            assert_eq!(plan.blocks.len(), blocks);
            for section in &plan.blocks {
                // Where a stream's last update is read by nobody it is left out, but not a whole sublayer.
                for sublayer in Sublayer::ORDER {
                    assert!(section.applies(sublayer), "{name}: {:?} has no {sublayer:?}", section.place);
                }
            }
        }
    }
}

#[test]
fn equations_and_costs() {
    let mut text = String::new();
    for (name, source) in library() {
        let scheme = Scheme::parse(name, source).unwrap();
        let plan = scheme.plan(dimensions(12)).unwrap();
        let prose = prose(&plan);
        text.push_str(&format!("== {name}: {}\n", scheme.title));
        for blocks in &prose.blocks {
            text.push_str(&format!("blocks {}-{}\n", blocks.first, blocks.last));
            for equation in &blocks.equations {
                text.push_str(&format!("    {}\n    {}\n", equation.text, equation.latex));
            }
        }
        text.push_str(&format!("{}\n", prose.head.text));
        let sizes = Sizes {
            kv_heads: 4,
            head_width: 16,
            ffn_width: 256,
            gated: false,
            bias: true,
            qkv_bias: true,
            norm: NormKind::Layernorm,
            answers: 256,
            context: 64,
            outside: (256 + 256 + 64) * 64,
            shared_blocks: false,
        };
        let cost = cost(std::slice::from_ref(&plan), sizes);
        text.push_str(&format!(
            "parameters {} (block 12: {}), norms in blocks 1 and 12: {} {}, elsewhere {}, forward {:.0} FLOP/token, {:.0} bytes/token\n",
            cost.parameters, cost.block_parameters[11], cost.block_norms[0], cost.block_norms[11], cost.other_norms,
            cost.forward_flops_per_token, cost.activation_bytes_per_token
        ));
        for section in &plan.blocks[..1] {
            text.push_str(&format!("norms: {}\n", section.norms().collect::<Vec<_>>().join(", ")));
            let svg = diagram(section, &plan.streams, name);
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"));
            if let Ok(folder) = std::env::var("ADDNORM_DIAGRAMS") {
                std::fs::write(format!("{folder}/{name}.svg"), svg).unwrap();
            }
        }
    }
    insta::assert_snapshot!(text);
}
