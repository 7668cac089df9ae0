"""Text to syntax trees and back: tokens, grammar, errors, formatter, imports."""
