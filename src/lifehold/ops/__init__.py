"""Operations on locks as people and monitors see them: who holds what, and is it alive."""
