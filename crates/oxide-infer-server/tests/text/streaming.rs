//! Decoding one id at a time, and what tokenizers promise for any text.

use oxide_infer::TokenId;
use oxide_infer_server::text::{DecodeFrom, SpecialInOutput, Tokenizer};
use proptest::prelude::*;

use crate::{DEMO, QWEN, gguf::SENTENCEPIECE, plain_ids};

fn tokenizer(index: usize) -> &'static Tokenizer {
    match index {
        0 => DEMO.tokenizer(),
        1 => &QWEN,
        _ => &SENTENCEPIECE,
    }
}

/// The pieces that a stream of ids gives, the last of them from the end of the stream.
fn pieces(tokenizer: &Tokenizer, ids: &[TokenId], special: SpecialInOutput, from: DecodeFrom) -> Vec<String> {
    let mut detokenizer = tokenizer.detokenizer(special, from);
    let mut pieces: Vec<String> = ids.iter().map(|&id| detokenizer.push(id)).collect();
    pieces.push(detokenizer.finish());
    pieces
}

#[test]
fn a_character_cut_by_tokens_appears_once_it_is_complete() {
    // 🙃 is F0 9F 99 83, three tokens in SmolLM2's vocabulary: F0 9F, 99, 83 (oracle case tp13).
    let ids = plain_ids(DEMO.tokenizer(), "🙃!");
    assert_eq!(ids[..3], [10813, 243, 221].map(TokenId));
    let got = pieces(DEMO.tokenizer(), &ids, SpecialInOutput::Skip, DecodeFrom::Start);
    assert_eq!(got, ["", "", "🙃", "!", ""]);
    let cut = pieces(DEMO.tokenizer(), &ids[..2], SpecialInOutput::Skip, DecodeFrom::Start);
    assert_eq!(cut, ["", "", "\u{FFFD}"], "the cut character is one U+FFFD, as str::from_utf8_lossy has it");
    let broken = pieces(DEMO.tokenizer(), &[ids[0], ids[3]], SpecialInOutput::Skip, DecodeFrom::Start);
    assert_eq!(broken, ["", "\u{FFFD}!", ""]);
}

#[test]
fn sentencepiece_bytes_and_the_first_space_come_out_right() {
    let tokenizer = &SENTENCEPIECE;
    let ids = plain_ids(tokenizer, "a 日");
    let start = pieces(tokenizer, &ids, SpecialInOutput::Skip, DecodeFrom::Start).concat();
    let continuation = pieces(tokenizer, &ids, SpecialInOutput::Skip, DecodeFrom::Continuation).concat();
    assert_eq!((start.as_str(), continuation.as_str()), ("a 日", " a 日"));
    let byte = |byte: u8| tokenizer.token_id(&format!("<0x{byte:02X}>")).unwrap();
    let letter = tokenizer.token_id("a").unwrap();
    // transformers: tokenizers.decoders.ByteFallback gives one U+FFFD for each byte of E6 97.
    let broken =
        pieces(tokenizer, &[byte(0xE6), byte(0x97), letter], SpecialInOutput::Skip, DecodeFrom::Start);
    assert_eq!(broken, ["", "", "\u{FFFD}\u{FFFD}a", ""]);
}

#[test]
fn ids_outside_the_vocabulary_have_no_text() {
    for index in 0..3 {
        let tokenizer = tokenizer(index);
        let outside = TokenId(tokenizer.vocab_size() as u32);
        assert_eq!(tokenizer.decode(&[outside, TokenId(u32::MAX)], SpecialInOutput::Keep), "");
        assert_eq!(tokenizer.token_bytes(outside), b"");
        assert_eq!(tokenizer.token_piece(outside), None);
    }
}

#[test]
fn bytes_of_a_token_are_its_own_even_inside_a_character() {
    assert_eq!(DEMO.tokenizer().token_bytes(TokenId(10813)), [0xF0, 0x9F]);
    assert_eq!(DEMO.tokenizer().token_text(TokenId(10813)), "\u{FFFD}");
    assert_eq!(DEMO.tokenizer().token_bytes(TokenId(38699)), b" Hello");
    assert_eq!(DEMO.tokenizer().token_piece(TokenId(38699)).unwrap(), "ĠHello");
    assert_eq!(DEMO.tokenizer().token_text(TokenId(2)), "<|im_end|>");
}

/// Ids of any kind, with special tokens and bytes more often than a uniform draw has them.
fn some_ids() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(prop_oneof![0u32..700, 0u32..49_152, 151_600u32..151_680], 0..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_pieces_of_a_stream_are_the_whole_text(index in 0usize..3, ids in some_ids(), keep: bool) {
        let ids: Vec<TokenId> = ids.into_iter().map(TokenId).collect();
        let special = if keep { SpecialInOutput::Keep } else { SpecialInOutput::Skip };
        let tokenizer = tokenizer(index);
        let streamed = pieces(tokenizer, &ids, special, DecodeFrom::Start);
        prop_assert_eq!(streamed.concat(), tokenizer.decode(&ids, special));
        // And the whole text is the bytes of the tokens.
        let shown = |id: &&TokenId| keep || !tokenizer.is_special(**id);
        let bytes: Vec<u8> = ids.iter().filter(shown).flat_map(|&id| tokenizer.token_bytes(id)).copied().collect();
        let continued = pieces(tokenizer, &ids, special, DecodeFrom::Continuation).concat();
        let squeezed = |text: &str| text.replace('\u{FFFD}', "");
        prop_assert_eq!(squeezed(&continued), squeezed(&String::from_utf8_lossy(&bytes)));
        if index < 2 {
            prop_assert_eq!(continued, String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn text_comes_back_from_its_ids(index in 0usize..3, text in "[ -~\n\té中日🙂]{0,40}") {
        let tokenizer = tokenizer(index);
        let ids = plain_ids(tokenizer, &text);
        prop_assert_eq!(tokenizer.decode(&ids, SpecialInOutput::Keep), text);
    }

    #[test]
    fn any_text_has_ids_and_a_fixed_point(index in 0usize..3, text in "\\PC{0,40}|[\u{0}-\u{ff}]{0,20}") {
        let tokenizer = tokenizer(index);
        let once = tokenizer.decode(&plain_ids(tokenizer, &text), SpecialInOutput::Keep);
        let twice = tokenizer.decode(&plain_ids(tokenizer, &once), SpecialInOutput::Keep);
        prop_assert_eq!(once, twice);
    }
}
