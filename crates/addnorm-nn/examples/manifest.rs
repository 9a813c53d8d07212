use addnorm_nn::*;
use addnorm_scheme::{NormKind, Scheme, library};
fn main() {
    let base = ModelConfig { blocks: 3, decoder_blocks: 0, width: 6, heads: 2, kv_heads: 1, ffn_width: 8, context: 4, vocabulary: 7, classes: 5, image: 4, patch: 2, channels: 1, ..ModelConfig::default() };
    let mut out = serde_json::Map::new();
    let mut put = |name: String, scheme: &str, config: &ModelConfig| {
        let text = library().find(|(n, _)| *n == scheme).unwrap().1;
        let scheme = Scheme::parse(scheme, text).unwrap();
        let value = match Model::new(&scheme, config) {
            Ok(model) => serde_json::json!(model.parameters().iter().map(|p| (p.name.clone(), p.shape.clone())).collect::<Vec<_>>()),
            Err(error) => serde_json::json!(error.to_string()),
        };
        out.insert(name, value);
    };
    for (name, _) in library() {
        for (stack_name, stack) in StackKind::ALL {
            let config = ModelConfig { stack, decoder_blocks: if stack == StackKind::Pair { 2 } else { 0 }, ..base.clone() };
            put(format!("{stack_name}/{name}"), name, &config);
        }
    }
    for (kind_name, norm) in NormKind::ALL {
        for (qk, qk_norm) in [("none", QkNorm::None), ("per_head", QkNorm::PerHead), ("full_width", QkNorm::FullWidth)] {
            put(format!("norms/{kind_name}-{qk}"), "peri", &ModelConfig { norm, qk_norm, ..base.clone() });
        }
    }
    let albert = ModelConfig { stack: StackKind::Encoder, embedding_norm: true, embedding_width: 4, token_types: 2, shared_blocks: true, output_transform: true, logit_bias: true, tied: true, ..base.clone() };
    put("options/albert".into(), "post", &albert);
    put("options/bert".into(), "post", &ModelConfig { embedding_width: 0, shared_blocks: false, ..albert.clone() });
    put("options/llama".into(), "pre", &ModelConfig { bias: false, norm: NormKind::Rmsnorm, positions: Positions::Rope, width: 8, head_width: 6, heads: 2, activation: ActivationKind::Swiglu, ..base.clone() });
    put("options/qwen2-tied".into(), "pre", &ModelConfig { bias: false, qkv_bias: Some(true), tied: true, norm: NormKind::Rmsnorm, positions: Positions::Rope, width: 8, activation: ActivationKind::Swiglu, ..base.clone() });
    put("options/tied-pair".into(), "pre", &ModelConfig { stack: StackKind::Pair, decoder_blocks: 2, tied: true, positions: Positions::Sinusoidal, embedding_scale: true, activation: ActivationKind::Relu, ..base.clone() });
    println!("{}", serde_json::to_string_pretty(&out).unwrap());
}
