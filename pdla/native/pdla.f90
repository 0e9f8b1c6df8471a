! pdla from Fortran: the functions of pdla.h, where they are documented. Texts end with c_null_char: "rows='row'" // c_null_char.
! Element (i, j) of a block in a Fortran array is i + (leading dimension) * j elements from its first: down = 1, across = lld.
module pdla
  use iso_c_binding, only: c_int, c_int64_t, c_char, c_ptr
  implicit none

  ! Error numbers. All end in _error: Fortran ignores case, and pdla.h's PDLA_GRID would be the function pdla_grid.
  integer(c_int), parameter :: pdla_ok = 0, pdla_shape_error = 1, pdla_layout_error = 2, pdla_grid_error = 3, pdla_plan_error = 4, &
       pdla_disagree_error = 5, pdla_handle_error = 6, pdla_other_error = 7

  interface
     integer(c_int) function pdla_grid(comm, axes, shape, grid) bind(c)
       import
       integer(c_int), value :: comm, axes
       integer(c_int), intent(in) :: shape(*)
       integer(c_int64_t), intent(out) :: grid
     end function

     integer(c_int) function pdla_local_shape(grid, m, n, layout, rows, cols) bind(c)
       import
       integer(c_int64_t), value :: grid, m, n
       character(kind=c_char), intent(in) :: layout(*)
       integer(c_int64_t), intent(out) :: rows, cols
     end function

     integer(c_int) function pdla_matrix(grid, type, m, n, layout, local, down, across, matrix) bind(c)
       import
       integer(c_int64_t), value :: grid, m, n, down, across
       character(kind=c_char), value :: type
       character(kind=c_char), intent(in) :: layout(*)
       type(c_ptr), value :: local
       integer(c_int64_t), intent(out) :: matrix
     end function

     integer(c_int) function pdla_part(matrix, i0, i1, j0, j1, part) bind(c)
       import
       integer(c_int64_t), value :: matrix, i0, i1, j0, j1
       integer(c_int64_t), intent(out) :: part
     end function

     integer(c_int) function pdla_gemm(opa, opb, alpha, a, b, beta, c) bind(c)
       import
       character(kind=c_char), value :: opa, opb
       type(c_ptr), value :: alpha, beta
       integer(c_int64_t), value :: a, b, c
     end function

     integer(c_int) function pdla_copy(op, a, c) bind(c)
       import
       character(kind=c_char), value :: op
       integer(c_int64_t), value :: a, c
     end function

     integer(c_int) function pdla_free(handle) bind(c)
       import
       integer(c_int64_t), value :: handle
     end function

     function pdla_error() bind(c)
       import
       type(c_ptr) :: pdla_error
     end function
  end interface
end module pdla
